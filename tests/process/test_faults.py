"""What goes wrong in a month: each with its message, its exit code, and nothing lost."""

import contextlib
import dataclasses
import hashlib
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from andread.rundir import companion, errors
from andread.rundir.layout import RunDirectory
from tests.process.harness import (
    Daemon,
    copy_run,
    count,
    entries,
    find,
    last_step,
    running,
    train,
)


def edit(run: RunDirectory, old: str, new: str) -> None:
    text = run.settings.read_text()
    assert old in text
    run.settings.write_text(text.replace(old, new, 1))


@pytest.fixture
def done(finished: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A run of 60 finished steps, free to be damaged, that is to go on to 80."""
    run = copy_run(finished, tmp_path / "run")
    edit(run, "steps = 60", "steps = 80")
    return run


@contextlib.contextmanager
def mounted(directory: Path, *arguments: str) -> Iterator[Path]:
    directory.mkdir(exist_ok=True)
    command = ["mount", *arguments, str(directory)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"this machine does not let us {' '.join(command)}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        ("seed = 7", "sede = 7", errors.CONFIG, 'unknown key "sede" (did you mean "seed"?)'),
        ("seed = 7", 'seed = "seven"', errors.CONFIG, "expected a whole number"),
        ("heads = 2", "heads = 3", errors.CONFIG, "not a multiple of heads"),
        ("width = 32", "width = 65536", errors.CONFIG, "2,147,483,647"),
        ("[model]", "[modle]", errors.CONFIG, 'did you mean "model"'),
        ("steps = 60", "steps = ", errors.CONFIG, "not valid TOML"),
        ("[[source]]", '[[source]]\ncolour = "red"', errors.CONFIG, "colour"),
        ("lr = 3e-3", "lr = -1.0", errors.CONFIG, "greater than 0"),
    ],
)
def test_a_wrong_run_toml(run: RunDirectory, old: str, new: str, code: int, said: str) -> None:
    edit(run, old, new)
    assert said in train(run, code=code).replace('\\"', '"')
    assert not run.history.exists()


def test_a_missing_run_and_a_wrong_command_line(tmp_path: Path) -> None:
    for arguments, code, said in (
        (["--run", str(tmp_path)], errors.NO_INPUT, "no run.toml"),
        (["--run", str(tmp_path / "nothing")], errors.NO_INPUT, "no run.toml"),
        (["--nonsense"], errors.USAGE, "--nonsense"),
        (["--device", "abacus"], errors.USAGE, "abacus"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "andread", *arguments], capture_output=True, text=True
        )
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
        assert "Traceback" not in done.stderr


def test_tokens_that_were_not_prepared(run: RunDirectory) -> None:
    shutil.rmtree(run.data)
    assert "andrectl prepare" in train(run, code=errors.NO_INPUT)


def test_tokens_that_changed_are_refused(done: RunDirectory) -> None:
    path = done.manifest("topics")
    text = path.read_text()
    found = companion.read(done.companion(60)).data["topics"]
    path.write_text(text.replace(found[:8], "0" * 8))
    assert "topics" in train(done, code=errors.DATA)


def test_a_second_daemon_waits_then_says_who_holds_the_run(run: RunDirectory) -> None:
    edit(run, "steps = 60", "steps = 100000")
    with running(run) as first:
        first.until_step(1)
        with running(run) as second:
            assert second.wait() == errors.TEMPORARY
        assert f"pid {first.process.pid}" in second.stderr()
        assert first.process.poll() is None


def test_what_shapes_the_trajectory_may_not_drift(done: RunDirectory) -> None:
    before = done.settings.read_text()
    edit(done, "lr = 3e-3", "lr = 1e-3")
    said = train(done, code=errors.CONFIG)
    assert "optimizer.lr: 0.003 became 0.001" in said
    assert "andrectl fork --set" in said, "the lawful way"
    done.settings.write_text(before)
    edit(done, "width = 32", "width = 64")
    assert "model.width: 32 became 64" in train(done, code=errors.CONFIG)
    assert last_step(done) == 60
    assert count(done, "rejected") == 0


def damage(path: Path, kind: str) -> None:
    data = bytearray(path.read_bytes())
    n = struct.unpack_from("<i", data, 4)[0]
    if kind == "flip":
        data[8 + 4 * n + 5] ^= 1
    elif kind == "header":
        data = data[:5]
    elif kind == "weights":
        data = data[: 8 + 2 * n]
    elif kind == "v":
        data = data[:-1]
    elif kind == "long":
        data += b"\0"
    elif kind == "step":
        struct.pack_into("<i", data, 0, 59)
    elif kind == "negative":
        struct.pack_into("<i", data, 0, -1)
    elif kind == "count":
        struct.pack_into("<i", data, 4, 2**31 - 1)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("flip", "SHA-256"),
        ("header", "cut off in its header"),
        ("weights", "cut off in region weights"),
        ("v", "cut off in region v"),
        ("long", "too long"),
        ("step", "of step 59"),
        ("negative", "negative step"),
        ("count", "cut off in region weights"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    done: RunDirectory, finished: RunDirectory, kind: str, said: str
) -> None:
    damage(done.checkpoint(60), kind)
    train(done)
    rejected = find(done, "rejected")
    assert rejected is not None and rejected["step"] == 60 and said in rejected["reason"]
    assert done.checkpoint(60).with_name("step_000060.bin.rejected").exists()
    assert done.companion(60).with_name("step_000060.json.rejected").exists()
    replay = find(done, "replay")
    assert replay is not None
    assert (replay["from"], replay["to"], replay["verdict"]) == (51, 60, "exact")
    assert done.checkpoint(60).read_bytes() == finished.checkpoint(60).read_bytes()
    assert [entry["step"] for entry in entries(done)] == list(range(1, 81))


@pytest.mark.parametrize("what", ["missing", "torn", "empty"])
def test_a_companion_that_cannot_be_read_costs_its_checkpoint(
    done: RunDirectory, what: str
) -> None:
    path = done.companion(60)
    if what == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 100 if what == "torn" else 0])
    train(done)
    rejected = find(done, "rejected")
    assert rejected is not None and "companion" in rejected["reason"]
    assert find(done, "replay", verdict="exact") is not None


def test_a_run_with_a_past_never_restarts_from_zero(done: RunDirectory) -> None:
    for step in done.checkpoint_steps():
        damage(done.checkpoint(step), "flip")
    said = train(done, code=errors.DATA)
    assert "never restarts from zero" in said
    assert len(done.checkpoint_steps()) == 7  # nothing was renamed
    for step in done.checkpoint_steps():
        done.checkpoint(step).unlink()
    train(done, code=errors.DATA)
    assert last_step(done) == 60


def test_a_changed_history_is_refused_until_it_is_accepted(done: RunDirectory) -> None:
    text = done.history.read_bytes()
    place = text.index(b'"loss":') + 7
    done.history.write_bytes(text[:place] + b"9" + text[place + 1 :])
    assert "--accept-history" in train(done, code=errors.DATA)
    assert done.history.read_bytes()[place : place + 1] == b"9"
    train(done, "--accept-history")
    assert find(done, "history_fault") is not None
    assert done.history.read_bytes()[place : place + 1] == b"9"
    assert [entry["step"] for entry in entries(done)] == list(range(1, 81))
    train(done)  # the checkpoints since vouch for the file as it is


def test_a_tampered_loss_is_found_by_the_replay(run: RunDirectory, finished: RunDirectory) -> None:
    edit(run, "checkpoint_every = 10", "checkpoint_every = 1000")
    with running(run) as daemon:
        daemon.until_step(11)
        daemon.kill()
    known = entries(finished)[10]["loss"]
    text = run.history.read_text()
    assert f'"step":11,"loss":{known}' in text
    run.history.write_text(text.replace(f'"step":11,"loss":{known}', '"step":11,"loss":1.25'))
    train(run)
    verdict = find(run, "replay")
    assert verdict is not None
    assert (verdict["verdict"], verdict["first"], verdict["steps"]) == ("differs", 11, 1)
    assert verdict["largest"] == abs(known - 1.25)
    assert find(run, "fault", what="replay") is not None
    assert entries(run)[10]["loss"] == 1.25  # the record is never rewritten


@pytest.mark.parametrize("torn", [b"", b"\0" * 500, b'{"step":', b'{"step":99}\n', b"\xff\xfe"])
def test_a_torn_end_of_the_history_is_cut_and_recomputed(
    run: RunDirectory, finished: RunDirectory, torn: bytes
) -> None:
    with running(run) as daemon:
        daemon.until_step(13)
        daemon.kill()
    data = run.history.read_bytes()
    place = data.index(b'{"step":13,')
    run.history.write_bytes(data[:place] + torn)
    train(run)
    assert find(run, "replay", verdict="exact") is not None
    assert entries(run) == entries(finished)


def test_a_history_shorter_than_vouched_costs_the_checkpoint(
    done: RunDirectory, finished: RunDirectory
) -> None:
    data = done.history.read_bytes()
    done.history.write_bytes(data[: data.index(b'{"step":45,')])
    train(done)
    rejected = find(done, "rejected", step=60)
    assert rejected is not None and "shorter" in rejected["reason"]
    assert entries(done)[:60] == entries(finished)


def poison(run: RunDirectory) -> None:
    """Put NaN into the weights of the newest checkpoint, vouched for as if it were meant."""
    path = run.checkpoint(60)
    data = bytearray(path.read_bytes())
    n = struct.unpack_from("<i", data, 4)[0]
    struct.pack_into("<f", data, 8 + 4 * (n - 1), float("nan"))  # in the head: every loss
    path.write_bytes(data)
    found = companion.read(run.companion(60))
    changed = dataclasses.replace(found, sha256=hashlib.sha256(data).hexdigest())
    companion.write(run.companion(60), changed)


def test_steps_that_are_not_finite_are_recorded_and_halt_the_run(done: RunDirectory) -> None:
    poison(done)
    said = train(done, code=errors.DIVERGED)
    assert "10 consecutive steps" in said
    last = entries(done)[60:]
    assert [(e["step"], e["loss"], e["skipped"]) for e in last] == [
        (step, None, "nonfinite") for step in range(61, 71)
    ]
    assert max(done.checkpoint_steps()) == 60
    assert count(done, "skipped", why="nonfinite") == 10
    assert find(done, "diverged") is not None


def test_a_read_only_file_system_and_no_permission(run: RunDirectory, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "andread", "--run", str(run.path)]
    with mounted(run.path, "--bind", str(run.path)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(run.path)], check=True)
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == errors.IO
    assert "read-only" in done.stderr.lower()
    assert "Traceback" not in done.stderr

    if os.geteuid() or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to try without permission")
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": "/nonexistent"},
    )
    assert done.returncode == errors.PERMISSION, done.stderr
    assert "permission" in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_retention_keeps_the_newest_the_multiples_and_the_pinned(run: RunDirectory) -> None:
    edit(run, "keep_last = 100", "keep_last = 2\nkeep_every = 30")
    run.pins.mkdir()
    run.pin(20).touch()
    with running(run) as daemon:
        daemon.until_event("started")
        run.checkpoint(7).write_bytes(b"not of this run")
        assert daemon.wait() == 0, daemon.stderr()
    assert run.checkpoint_steps() == [0, 7, 20, 30, 50, 60]
    assert not run.companion(10).exists()


def test_leftovers_of_a_dead_writer_are_swept_and_lost_answers_given(done: RunDirectory) -> None:
    (done.path / "step_000070.bin.tmp-0badcafe").write_bytes(b"torn")
    (done.path / "step_000070.json").write_bytes(b"{}")
    found = companion.read(done.companion(60))
    companion.write(done.companion(60), dataclasses.replace(found, requests=("lost",)))
    train(done)
    assert not list(done.path.glob("*.tmp-*"))
    answer = find(done, "acknowledged", id="lost")
    assert answer is not None and answer["step"] == 60


def test_a_daemon_survives_the_end_of_whoever_reads_its_stderr(run: RunDirectory) -> None:
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "andread", "--run", str(run.path)], stderr=writer
    )
    os.close(writer)
    os.close(reader)
    assert process.wait(120) == 0
    assert last_step(run) == 60


def test_a_daemon_killed_again_and_again_makes_progress(
    run: RunDirectory, finished: RunDirectory
) -> None:
    for step in (12, 25, 25, 33):
        daemon = Daemon(run)
        daemon.until_step(step)
        daemon.kill()
    train(run)
    assert entries(run) == entries(finished)
    assert run.checkpoint(60).read_bytes() == finished.checkpoint(60).read_bytes()
