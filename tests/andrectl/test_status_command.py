"""`andrectl status` on run directories in every state, and what it may cost."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import subprocess

import pytest

from andread.rundir import clock, events, files, pivot
from andread.rundir.pivot import Journal
from andread.rundir.policy import Policy, read_policies, write_policies

STATE = {
    "format": 1,
    "step": 200,
    "phase": {"name": "all", "steps": 200, "of": None},
    "arms": {
        "books": {"pulls": 75, "epochs": 0.5, "ema_loss": 3.1, "probability": 0.6, "cap": 0.7},
        "code": {"pulls": 25, "epochs": 0.1, "ema_loss": None},
        "repo-docstrings": {"pulls": 900, "weight": 1.546},
    },
    "zombies": {"wiki": {"pulls": 3}},
}
AUDITS = {
    "format": 1,
    "audits": [
        {"step": 100, "mean": 4.0, "validation": {"books": 4.0}},
        {"step": 200, "mean": 3.5, "validation": {"books": 3.4, "code": 3.6}},
    ],
}


def status(andrectl, run, code: int) -> dict:
    text = andrectl("--run", run.path, "status")
    result = andrectl("--run", run.path, "status", "--json")
    assert text.exit_code == result.exit_code == code, text.stderr
    assert text.stdout
    return {**json.loads(result.stdout), "text": text.stdout}


def test_a_run_that_never_started(andrectl, run) -> None:
    told = status(andrectl, run, 3)
    assert told["schema"] == 1
    assert (told["state"], told["step"], told["steps"]) == ("never started", 0, 300)
    assert told["checkpoint"] is None and told["damaged"] == []
    assert told["disk"]["more_checkpoints"] > 0
    assert "books, code" in told["text"]


def test_a_stopped_run(andrectl, trained) -> None:
    files.replace_json(trained.state, STATE)
    files.replace_json(trained.samples, AUDITS)
    events.emit(trained.events, "replay", **{"from": 101, "to": 120, "verdict": "exact"})
    told = status(andrectl, trained, 3)
    assert (told["state"], told["step"], told["recorded_step"]) == ("stopped", 250, 250)
    assert told["loss"] == 3.5
    assert told["loss_mean_before"] - told["loss_mean"] == pytest.approx(1.0)
    assert told["checkpoint"]["step"] == 200 and told["kept"]["count"] == 2
    assert told["policy"]["algorithm"] == "uniform" and told["curriculum_phase"]["name"] == "all"
    assert told["validation"] == {"step": 200, "mean": 3.5, "sources": {"books": 3.4, "code": 3.6}}
    assert told["replay"]["verdict"] == "exact"
    assert told["damaged"] == []
    for shown in ("step 200", "mean 3.5000 at step 200", "steps 101 to 120: exact"):
        assert shown in told["text"]


def test_a_zombie_is_named_and_not_counted(andrectl, trained) -> None:
    files.replace_json(trained.state, STATE)
    told = status(andrectl, trained, 3)
    assert told["zombies"] == ["repo-docstrings", "wiki"]
    assert [(arm["name"], arm["share"]) for arm in told["sources"]] == [
        ("books", 0.75),
        ("code", 0.25),
    ]
    assert "zombie arm repo-docstrings" in told["text"]


def test_how_the_last_daemon_ended(andrectl, trained) -> None:
    events.emit(trained.events, "started", pid=1)
    events.emit(trained.events, "skipped", step=3, why="nonfinite")
    events.emit(trained.events, "fault", what="disk", detail="it is full")
    events.emit(trained.events, "stopped", step=250, why="SIGTERM", exit_code=81)
    told = status(andrectl, trained, 3)
    assert told["stopped"]["exit_code"] == 81 and told["skipped_steps"] == 1
    assert "SIGTERM (exit code 81)" in told["text"] and "disk: it is full" in told["text"]
    events.emit(trained.events, "started", pid=2)
    events.emit(trained.events, "finished", step=300)
    told = status(andrectl, trained, 3)
    assert (told["finished"], told["trouble"], told["skipped_steps"]) == (True, [], 0)


def test_requests_and_a_pivot_in_flight(andrectl, trained) -> None:
    trained.requests.mkdir()
    files.replace_json(trained.request("abc"), {"id": "abc", "at": "cadence", "hold": True})
    target = Policy(caps={"code": 0.5})
    base = read_policies(trained.policy)[-1]
    journal = Journal(dataclasses.asdict(target), base.id, "cadence", running=True, t=1.0)
    pivot.write(trained, journal)
    told = status(andrectl, trained, 3)
    assert told["requests"] == [{"id": "abc", "at": "cadence", "hold": True}]
    assert told["pivot"]["committed"] is False and told["pivot"]["pid"] is None
    assert "left behind, nothing has changed yet" in told["text"]

    pivot.write(trained, dataclasses.replace(journal, step=200, archive="pivot_000200"))
    write_policies(trained.policy, [base, dataclasses.replace(target, begins_after=200)])
    told = status(andrectl, trained, 3)
    assert told["pivot"]["committed"] is True
    assert "committed after step 200, its proof is missing" in told["text"]


def test_a_daemon_without_a_word_shows(andrectl, daemon, run, monkeypatch) -> None:
    daemon("train")
    andrectl("--run", run.path, "start")
    assert status(andrectl, run, 0)["stuck"] is False
    now = clock.boot_seconds()
    monkeypatch.setattr("andread.rundir.clock.boot_seconds", lambda: now + 3600)
    told = status(andrectl, run, 0)
    assert told["stuck"] and told["silent_seconds"] >= 3600
    assert "no word from the daemon for 1h 00m" in told["text"]
    assert told["eta_seconds"] == pytest.approx(293)


def test_no_such_run_is_unknown(andrectl, tmp_path, monkeypatch) -> None:
    for line in (("status",), ("status", "--run", tmp_path / "none"), ("status", "--watch")):
        result = andrectl(*line)
        assert result.exit_code == 4
        assert "hint: " in result.stderr and not result.stdout


def test_a_newer_checkpoint_that_is_invalid_is_named(andrectl, trained) -> None:
    trained.companion(200).unlink()
    (trained.path / "step_000050.bin.rejected").touch()
    told = status(andrectl, trained, 3)
    assert told["checkpoint"]["step"] == 100
    assert [item["file"] for item in told["damaged"]] == ["step_000200.bin"]
    assert told["rejected"] == ["step_000050.bin.rejected"]


DAMAGES = {
    "empty": b"",
    "binary": b"\x00\xff\xfe" * 100,
    "list": b"[1, 2, 3]",
    "number": b"7",
    "table": b'{"arms": 3, "audits": {"a": 1}, "phase": [], "step": "x", "zombies": null}',
    "nested": b'{"arms": {"books": 3, "code": {"pulls": "many", "epochs": []}}, "zombies": ["z"],'
    b' "audits": [{"step": null, "validation": [], "mean": "x"}]}',
}
NAMED = ("settings", "policy", "history", "samples", "state", "events", "lock", "pivot")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", NAMED)
def test_no_damaged_file_hides_the_rest(andrectl, trained, name: str, damage: str) -> None:
    path = getattr(trained, name)
    path.write_bytes(DAMAGES[damage])
    told = status(andrectl, trained, 3)
    assert told["checkpoint"]["step"] == 200
    must_be_named = name in ("settings", "policy") or (
        damage in ("empty", "binary") and name in ("samples", "state", "pivot")
    )
    if must_be_named:
        assert path.name in [item["file"] for item in told["damaged"]]
        assert path.name in told["text"]


@pytest.mark.parametrize("name", [name for name in NAMED if name not in ("settings", "lock")])
def test_a_folder_in_a_file_s_place_is_named(andrectl, trained, name: str) -> None:
    path = getattr(trained, name)
    path.unlink(missing_ok=True)
    path.mkdir()
    told = status(andrectl, trained, 3)
    assert path.name in [item["file"] for item in told["damaged"]]


def test_a_lock_that_cannot_be_asked_is_unknown(andrectl, trained, monkeypatch) -> None:
    def refuse(_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("andread.rundir.lock.holder", refuse)
    assert status(andrectl, trained, 4)["state"] == "unknown"


def test_random_events_and_state_never_crash_it(andrectl, trained) -> None:
    chance = random.Random(1)
    junk = [None, 3, -1.5, "x\x1b[31m", [], {}, True, [{}], {"books": None}]
    kinds = ["started", "stopped", "replay", "fault", "checkpoint", "finished", "spike", 5, None]
    keys = ["t", "up", "boot", "step", "why", "exit_code", "verdict", "what", "detail", "from"]
    for _ in range(30):
        with trained.events.open("w") as stream:
            for _ in range(10):
                event = {key: chance.choice(junk) for key in keys if chance.random() < 0.5}
                stream.write(json.dumps({"event": chance.choice(kinds), **event}) + "\n")
        told = status(andrectl, trained, 3)
        assert "\x1b[31m" not in told["text"]


def test_a_vanishing_directory_is_unknown(andrectl, trained, monkeypatch) -> None:
    def vanish(run: object) -> None:
        shutil.rmtree(trained.path)
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("andrectl.commands.status.overview", vanish)
    assert andrectl("--run", trained.path, "status").exit_code == 4


def test_status_imports_nothing_heavy(python, trained) -> None:
    code = (
        "import sys; from andrectl.cli import main\n"
        "try: main(['--run', sys.argv[1], 'status'])\n"
        "except SystemExit as end: print(end.code)\n"
        "print([m for m in ('torch', 'numpy', 'rich', 'systemd', 'psutil') if m in sys.modules])"
    )
    done = python("-c", code, trained.path)
    assert done.stdout.splitlines()[-2:] == ["3", "[]"], done.stderr


def test_watch_as_lines(trained) -> None:
    import signal
    import subprocess
    import sys

    line = [sys.executable, "-m", "andrectl", "--run", str(trained.path), "status"]
    with subprocess.Popen(
        [*line, "--watch", "--json", "--interval", "0.1"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        seen = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    assert all(view["schema"] == 1 for view in seen)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: mounts, for they need root")
def test_a_read_only_file_system_is_an_alarm(andrectl, trained) -> None:
    """The daemon cannot write its own alarm there: `.lock` lies on the same disk."""
    subprocess.run(["mount", "--bind", trained.path, trained.path], check=True)
    try:
        assert not status(andrectl, trained, 3)["alarm"]
        subprocess.run(["mount", "-o", "remount,bind,ro", trained.path], check=True)
        told = status(andrectl, trained, 3)
    finally:
        subprocess.run(["umount", trained.path], check=True)
    assert "read-only" in told["alarm"]
    assert "alarm: the file system is read-only" in told["text"]
