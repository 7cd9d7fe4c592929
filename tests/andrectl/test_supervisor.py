"""Starting, asking and stopping a real process that keeps the daemon's protocol."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from andread.rundir import commit, events, lock
from andrectl import awaiting, supervisor


@contextlib.contextmanager
def holding(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Have another process, which is no daemon, hold the lock at `path`."""
    code = (
        "import sys, time; from andread.rundir.lock import RunLock; from pathlib import Path\n"
        "with RunLock.acquire(Path(sys.argv[1])): print(flush=True); time.sleep(60)"
    )
    line = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            yield other
        finally:
            other.kill()


def alive(run) -> bool:
    return lock.holder(run.lock) is not None


def test_start_status_snapshot_stop(andrectl, daemon, run) -> None:
    daemon("train")
    started = andrectl("--run", run.path, "start")
    assert started.exit_code == 0, started.stderr
    assert "training since step 0 of 300" in started.stdout and alive(run)
    pid = lock.holder(run.lock)
    assert os.getsid(pid) == pid != os.getsid(0)
    assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, [])

    status = andrectl("--run", run.path, "status", "--json")
    told = json.loads(status.stdout)
    assert status.exit_code == 0
    assert (told["state"], told["pid"], told["phase"]) == ("running", pid, "training")
    assert told["supervisor"] == {"kind": "detached"}

    snapshot = andrectl("--run", run.path, "snapshot", "--json")
    told = json.loads(snapshot.stdout)
    assert snapshot.exit_code == 0
    assert (told["step"], told["sha256"], told["pinned"]) == (7, "b" * 64, True)
    assert not list(run.requests.iterdir())

    stopped = andrectl("--run", run.path, "stop")
    assert stopped.exit_code == 0
    assert "stopped after step 7 (SIGTERM), exit code 0" in stopped.stdout
    assert str(run.checkpoint(7)) in stopped.stdout and "stopping" in stopped.stderr
    assert not alive(run)


def test_a_second_start_names_the_first(andrectl, daemon, run) -> None:
    daemon("train")
    assert andrectl("--run", run.path, "start").exit_code == 0
    again = andrectl("--run", run.path, "start")
    assert again.exit_code == 75
    assert f"pid {lock.holder(run.lock)}" in again.stderr
    assert andrectl("--run", run.path, "start", "--foreground").exit_code == 75


def test_a_daemon_that_fails_passes_its_code_and_its_last_words_on(andrectl, daemon, run) -> None:
    run.log.write_text("of an earlier start\n")
    daemon("fail")
    result = andrectl("--run", run.path, "start")
    assert result.exit_code == 78
    assert "| run.toml is wrong" in result.stderr
    assert "earlier" not in result.stderr and "earlier" in run.log.read_text()


def test_steps_past_the_end_of_the_schedule_are_told(andrectl, daemon, run) -> None:
    text = run.settings.read_text()
    run.settings.write_text(text.replace("\nsteps = 300", "\nsteps = 500", 1))
    daemon("finished")
    result = andrectl("--run", run.path, "start")
    assert "past step 300 (decay_steps)" in result.stderr
    assert "--set optimizer.decay_steps=500" in result.stderr


def test_a_finished_run_is_no_failure(andrectl, daemon, run) -> None:
    daemon("finished")
    result = andrectl("--run", run.path, "start")
    assert result.exit_code == 0
    assert "finished" in result.stdout


def test_stopping_a_stopped_run_is_no_error(andrectl, run) -> None:
    result = andrectl("--run", run.path, "stop")
    assert result.exit_code == 0 and "was not running" in result.stdout
    told = json.loads(andrectl("--run", run.path, "stop", "--json").stdout)
    assert told["was_running"] is False


def test_a_last_write_that_failed_is_not_missed(andrectl, daemon, run) -> None:
    daemon("badwrite")
    andrectl("--run", run.path, "start")
    result = andrectl("--run", run.path, "stop", "--json")
    assert result.exit_code == 81
    assert json.loads(result.stdout)["stopped"]["exit_code"] == 81


def test_a_stop_that_takes_too_long_is_given_up(andrectl, daemon, run) -> None:
    daemon("train")
    andrectl("--run", run.path, "start")
    result = andrectl("--run", run.path, "stop", "--timeout", 0)
    assert result.exit_code == 75
    assert "still stopping" in result.stderr
    while alive(run):
        time.sleep(0.02)
    assert awaiting.last(list(events.read(run.events)), "stopped")["exit_code"] == 0


def test_a_daemon_killed_while_stopping_is_told(andrectl, daemon, run) -> None:
    daemon("train")
    andrectl("--run", run.path, "start")
    pid = lock.holder(run.lock)
    with run.log.open("a") as log:
        log.write("of before\n")
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.4, os.kill, (pid, signal.SIGKILL)).start()
    result = andrectl("--run", run.path, "stop")
    assert result.exit_code == 71
    assert "it was killed" in result.stderr and "of before" not in result.stderr


def test_a_snapshot_of_a_stopped_run(andrectl, trained) -> None:
    result = andrectl("--run", trained.path, "snapshot")
    assert result.exit_code == 3
    assert "not running" in result.stderr and not trained.requests.exists()


@pytest.mark.parametrize(
    ("mode", "options", "code", "why"),
    [
        ("refuse", (), 75, "the daemon refused: it is not wanted"),
        ("silent", ("--timeout", 0.3), 75, "the request is withdrawn"),
        ("die", (), 3, "ended before it answered: it was killed"),
    ],
)
def test_a_snapshot_that_fails_says_why(andrectl, daemon, run, mode, options, code, why) -> None:
    daemon(mode)
    andrectl("--run", run.path, "start")
    result = andrectl("--run", run.path, "snapshot", *options)
    assert result.exit_code == code
    assert why in result.stderr and not result.stdout
    assert not list(run.requests.iterdir())


def test_a_snapshot_cut_short_by_a_stop_says_so(andrectl, daemon, run) -> None:
    daemon("silent")
    andrectl("--run", run.path, "start")
    threading.Timer(0.4, lock.signal_holder, (run.lock, signal.SIGTERM)).start()
    result = andrectl("--run", run.path, "snapshot")
    assert result.exit_code == 3
    assert "it stopped after step 7 (SIGTERM)" in result.stderr


@pytest.mark.parametrize("verb", ["snapshot", "stop"])
def test_a_holder_that_is_no_daemon_is_not_asked(andrectl, run, monkeypatch, verb) -> None:
    clock = iter(range(0, 1000, 6))
    with holding(run.lock) as other:
        monkeypatch.setattr("andread.rundir.clock.boot_seconds", lambda: float(next(clock)))
        result = andrectl("--run", run.path, verb)
        assert other.poll() is None
    assert result.exit_code == 75
    assert f"pid {other.pid} holds the run, and is no daemon" in result.stderr


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_a_pivot_in_flight_is_not_disturbed(andrectl, daemon, run, verb) -> None:
    daemon("train")
    with holding(run.pivot_lock) as other:
        result = andrectl("--run", run.path, verb)
    assert result.exit_code == 75 and not alive(run)
    assert f"pivot is in flight (pid {other.pid})" in result.stderr
    assert "try again" in result.stderr and not result.stdout


def test_a_full_disk_hides_neither_start_nor_end(andrectl, daemon, run) -> None:
    daemon("full")
    started = andrectl("--run", run.path, "start")
    assert started.exit_code == 0
    assert f"training since step 7 of 300, pid {lock.holder(run.lock)}" in started.stdout
    assert "alarm: the disk is full" in started.stderr
    stopped = andrectl("--run", run.path, "stop")
    assert stopped.exit_code == 81
    assert "stopped after step 7 (SIGTERM), exit code 81" in stopped.stdout
    assert "alarm: the disk is full" in stopped.stderr


def test_the_slower_of_two_starts_names_the_quicker(andrectl, daemon, run) -> None:
    daemon("beaten")
    result = andrectl("--run", run.path, "start")
    assert result.exit_code == 75
    assert f"is running already (pid {lock.holder(run.lock)})" in result.stderr
    assert "quicker" not in result.stderr


def test_the_command_line_of_the_daemon(run, monkeypatch) -> None:
    monkeypatch.chdir(run.path.parent)
    relative = type(run)(run.path.name)
    line = supervisor.command(relative, ["--device", "cpu"])
    assert line == [
        sys.executable, "-m", "andread", "--run", str(run.path), "--device", "cpu"
    ]  # fmt: skip


def test_foreground_becomes_the_daemon(daemon, run, python) -> None:
    code = (
        "import sys; from andrectl import supervisor; from andrectl.cli import main\n"
        "supervisor.command = lambda *_: sys.argv[2:]\n"
        "main(['--run', sys.argv[1], 'start', '--foreground'])"
    )
    daemon("fail")
    line = supervisor.command(run, [])
    done = python("-c", code, run.path, *line)
    assert (done.returncode, done.stderr.strip()) == (78, "run.toml is wrong")


def test_unpinned_snapshots_are_asked_for_as_such(andrectl, daemon, run) -> None:
    daemon("train")
    andrectl("--run", run.path, "start")
    result = andrectl("--run", run.path, "snapshot", "--no-pin", "--at", "cadence")
    assert result.exit_code == 0
    assert "--pin 7" in result.stderr and commit.pinned(run) == set()
