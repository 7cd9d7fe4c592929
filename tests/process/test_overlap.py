"""Checkpoints that are written while training goes on: on a disk that takes its time."""

import contextlib
import hashlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from andread.rundir import companion, events, history
from andread.rundir.layout import RunDirectory
from tests.process.harness import Daemon, entries, find, last_step, make_run, running, train
from tests.process.pivoting import set_steps

SLOW = 0.7
"""Seconds that each fsync takes longer."""


@contextlib.contextmanager
def slow_disk(daemon: Daemon, trace: Path, *inject: str) -> Iterator[None]:
    """Let every fsync of the daemon take its time, for real, from now on; `inject` more."""
    injected = (f"fsync:delay_enter={SLOW * 1e6:.0f}", *inject)
    command = ["strace", "-f", "-o", str(trace), "-p", str(daemon.process.pid)]
    command += ["-e", "trace=fsync,fallocate"]
    for what in injected:
        command += ["-e", f"inject={what}"]
    strace = subprocess.Popen(command, stderr=subprocess.PIPE)
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


def newest(run: RunDirectory) -> dict[str, Any]:
    event = find(run, "checkpoint")
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


def test_a_checkpoint_that_is_tried_again_is_not_asked_for_twice(
    long_run: RunDirectory, tmp_path: Path
) -> None:
    """What was owed is owed no more while it is being written: no step waits for it."""
    with running(long_run) as daemon:
        daemon.until_step(12)
        with slow_disk(daemon, tmp_path / "trace", "fallocate:error=ENOSPC:when=1"):
            failed = daemon.until_event("fault", what="checkpoint")
            daemon.until_event("healed", what="checkpoint")
            daemon.until(lambda: newest(long_run)["t"] > failed["t"])
            again = newest(long_run)
            assert again["reasons"] == ["cadence"] and again["step"] % 10, "it was tried later"
            daemon.until(lambda: newest(long_run) != again)
            daemon.kill()
    told = [e for e in events.read(long_run.events) if e["event"] == "checkpoint"]
    assert [e["step"] for e in told if not e["reasons"]] == [], "each has a reason"
    assert told[-1]["step"] % 10 == 0, "the next one is that of the cadence"
    steps = [e["step"] for e in history.read(long_run.history) if failed["t"] < e["t"] < again["t"]]
    assert len(steps) > 1, "steps were trained beside it"


def test_a_request_on_a_disk_that_fails_is_not_tried_at_every_step(
    long_run: RunDirectory, tmp_path: Path
) -> None:
    """It joins the checkpoint that is owed, at growing distances, and is served in the end."""
    trace = tmp_path / "trace"
    command = [sys.executable, "-m", "andrectl", "snapshot", "--run", str(long_run.path)]
    with running(long_run) as daemon:
        daemon.until_step(12)
        with slow_disk(daemon, trace, "fallocate:error=ENOSPC"):
            daemon.until_event("fault", what="checkpoint")
            asking = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            daemon.until(lambda: list(long_run.path.glob("requests/*.json")))
            begun = last_step(long_run) + 10
            daemon.until_step(begun)
            before = trace.read_text().count("fallocate(")
            daemon.until_step(begun + 60)
            tried = trace.read_text().count("fallocate(") - before
            steps = last_step(long_run) - begun
        printed, _ = asking.communicate(timeout=60)
        told = find(long_run, "acknowledged")
        assert told is not None and printed.startswith(f"step {told['step']}")
    assert 0 < tried < steps / 2, f"{tried} times in {steps} steps"
