"""Checkpoints that are written while training goes on: on a disk that takes its time."""

import contextlib
import hashlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from andread.rundir import companion, history
from andread.rundir.layout import RunDirectory
from tests.process.harness import Daemon, entries, find, last_step, make_run, running, train
from tests.process.pivoting import set_steps

SLOW = 0.7
"""Seconds that each fsync takes longer."""


@contextlib.contextmanager
def slow_disk(daemon: Daemon, trace: Path) -> Iterator[None]:
    """Let every fsync of the daemon take its time, for real, from now on."""
    delay = f"inject=fsync:delay_enter={SLOW * 1e6:.0f}"
    strace = subprocess.Popen(
        ["strace", "-f", "-o", trace, "-p", str(daemon.process.pid), "-e", "fsync", "-e", delay],
        stderr=subprocess.PIPE,
    )
    assert strace.stderr is not None
    assert b"attached" in strace.stderr.readline()
    try:
        yield
    finally:
        strace.terminate()
        strace.communicate()


@pytest.fixture
def long_run(tmp_path: Path) -> RunDirectory:
    return make_run(tmp_path / "run", steps=1_000_000, every=10, keep=3)


def written(run: RunDirectory, step: int) -> dict[str, float]:
    event = find(run, "checkpoint", step=step)
    assert event is not None
    return event


def test_training_goes_on_while_a_checkpoint_is_written(
    long_run: RunDirectory, tmp_path: Path
) -> None:
    with running(long_run) as daemon:
        daemon.until_step(12)
        with slow_disk(daemon, tmp_path / "trace"):
            first = (last_step(long_run) // 10 + 2) * 10
            daemon.until_event("checkpoint", step=first)
            daemon.until_event("checkpoint", step=first + 10)
            daemon.send(signal.SIGTERM)
            assert daemon.wait() == 0, daemon.stderr()
    one, two = written(long_run, first), written(long_run, first + 10)
    beside = [
        e["step"] for e in history.read(long_run.history) if first < e["step"] and e["t"] < one["t"]
    ]
    assert beside, "steps were trained while the file was on its way"
    assert max(beside) <= first + 10, "but none past the next one that is due: it is not skipped"
    assert one["seconds"] > 3 * SLOW and two["seconds"] > 3 * SLOW
    assert two["waited"] > SLOW and one["stalled"] < SLOW
    last = last_step(long_run)
    assert long_run.checkpoint_steps()[-1] == last, "the stop's own is written, and awaited"
    assert [e["step"] for e in entries(long_run)] == list(range(1, last + 1))


def goes_on_exactly(run: RunDirectory, upto: int) -> None:
    """Train a run that was killed to its end: what was recorded comes out once more."""
    set_steps(run, upto)
    train(run)
    replay = find(run, "replay")
    assert replay is not None and replay["verdict"] == "exact"
    assert [e["step"] for e in entries(run)] == list(range(1, upto + 1))


def test_what_was_frozen_is_what_a_resume_finds(long_run: RunDirectory, tmp_path: Path) -> None:
    """Killed with checkpoints behind it that were written beside later steps: the same run."""
    with running(long_run) as daemon:
        daemon.until_step(12)
        with slow_disk(daemon, tmp_path / "trace"):
            first = (last_step(long_run) // 10 + 2) * 10
            daemon.until_event("checkpoint", step=first)
            daemon.until_step(first + 5)
            daemon.kill()
    kept = long_run.checkpoint_steps()
    digests = [hashlib.sha256(long_run.checkpoint(s).read_bytes()).hexdigest() for s in kept]
    assert digests == [companion.read(long_run.companion(s)).sha256 for s in kept]
    goes_on_exactly(long_run, first + 40)


def test_killed_while_a_file_is_on_its_way(long_run: RunDirectory, tmp_path: Path) -> None:
    with running(long_run) as daemon:
        daemon.until_step(12)
        with slow_disk(daemon, tmp_path / "trace"):
            first = (last_step(long_run) // 10 + 2) * 10
            daemon.until_event("checkpoint", step=first)
            daemon.until_step(first + 10)
            daemon.until(lambda: list(long_run.path.glob(f"step_{first + 10:06}.bin.tmp*")))
            daemon.kill()
    assert long_run.checkpoint_steps()[-1] == first
    goes_on_exactly(long_run, first + 40)
    assert not list(long_run.path.glob("*.tmp*")), "what the dead writer left was swept"


def test_a_request_is_answered_when_its_file_is_durable(
    long_run: RunDirectory, tmp_path: Path
) -> None:
    with running(long_run) as daemon:
        daemon.until_step(12)
        with slow_disk(daemon, tmp_path / "trace"):
            asked = subprocess.run(
                [sys.executable, "-m", "andrectl", "snapshot", "--run", str(long_run.path)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert asked.returncode == 0, asked.stderr
            told = find(long_run, "acknowledged")
            assert told is not None
            assert last_step(long_run) > told["step"], "training went on meanwhile"
            path = long_run.checkpoint(told["step"])
            assert hashlib.sha256(path.read_bytes()).hexdigest() == told["sha256"]
