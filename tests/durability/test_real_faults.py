"""Disks that really fail under a real daemon: full, lying, read-only, limited, and very slow.

Training goes on wherever it can; the alarm is in the lock's content (what `andrectl status` reads),
in the events and in what the daemon says; the next boundary heals; and what comes out in the end is
the undisturbed run, bit for bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from andread.rundir import errors, presence
from andread.rundir.layout import RunDirectory
from tests.durability.conftest import Tally
from tests.durability.disks import LoopDisk, loop_disk, memory_disk
from tests.durability.forked import (
    ENDLESS,
    copied,
    forked,
    reference,
    set_run,
    told,
    unsound,
)
from tests.durability.zygote import Zygote
from tests.process.harness import count, find, last_step
from tests.rundir.helpers import fill


def alarm(run: RunDirectory) -> str:
    return presence.read(run.lock).alarm


def status(run: RunDirectory) -> dict[str, Any]:
    """Return what `andrectl status` says."""
    done = subprocess.run(
        [sys.executable, "-m", "andrectl", "--run", str(run.path), "status", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (errors.OK, errors.STOPPED), done.stderr
    return json.loads(done.stdout)


@contextlib.contextmanager
def filled(directory: Path) -> Iterator[None]:
    """Have no byte left on the disk of `directory` for a while."""
    ballast = fill(directory)
    try:
        yield
    finally:
        os.truncate(ballast, 0)
        ballast.unlink()


def test_a_full_disk_costs_no_step_and_heals(
    daemons: Zygote, short_run: RunDirectory, tmp_path: Path, tally: Tally
) -> None:
    """A checkpoint takes 553 kB: room for the start, then none, then plenty."""
    with memory_disk("3m") as disk:
        run = copied(short_run, disk / "run", steps=ENDLESS, checkpoint_every=10)
        with forked(daemons, run, tmp_path / "log") as daemon:
            daemon.until_step(1)
            for _ in range(3):  # full, room again, full again
                with filled(disk):
                    faults = len(told(daemon, "fault", what="checkpoint"))
                    daemon.until(
                        lambda: len(told(daemon, "fault", what="checkpoint")) > faults  # noqa: B023
                    )
                    assert "checkpoint: No space left" in alarm(run)
                    begun = last_step(run)
                    step = presence.read(run.lock).step
                    daemon.until(lambda: presence.read(run.lock).step > step + 20)  # noqa: B023
                    assert "No space left" in status(run)["alarm"]
                daemon.until(lambda: "checkpoint" not in alarm(run))
                daemon.until_step(begun + 20)
            daemon.until(lambda: count(run, "healed", what="checkpoint") == 3)
            daemon.send(signal.SIGTERM)
            assert daemon.wait() == 0
        last = last_step(run)
        assert unsound(run, reference(daemons, short_run, tmp_path, last)) == []
    tally("real faults")


def test_a_stop_on_a_full_disk_says_that_the_last_write_failed(
    daemons: Zygote, short_run: RunDirectory, tmp_path: Path, tally: Tally
) -> None:
    with memory_disk("3m") as disk:
        run = copied(short_run, disk / "run", steps=ENDLESS, checkpoint_every=ENDLESS)
        with forked(daemons, run, tmp_path / "log") as daemon:
            daemon.until_step(3)
            with filled(disk):
                daemon.send(signal.SIGTERM)
                assert daemon.wait() == errors.LAST_WRITE_FAILED
        assert run.checkpoint_steps() == [0]
        with forked(daemons, run, tmp_path / "log") as daemon:
            assert daemon.until(lambda: told(daemon, "replay"))[0]["verdict"] == "exact"
            daemon.send(signal.SIGTERM)
            assert daemon.wait() == 0
        assert unsound(run, reference(daemons, short_run, tmp_path, last_step(run))) == []
    tally("real faults")


def test_an_fsync_that_fails_and_then_lies(
    daemons: Zygote, short_run: RunDirectory, tmp_path: Path, tally: Tally
) -> None:
    """The disk promises space that its own disk has not: writes go well until they are synced."""
    with memory_disk("24m") as beneath, loop_disk(64 << 20, within=str(beneath)) as disk:
        run = copied(short_run, disk.path / "run", steps=ENDLESS, checkpoint_every=10)
        with forked(daemons, run, tmp_path / "log") as daemon:
            daemon.until(lambda: told(daemon, "checkpoint", step=10))
            with filled(beneath):
                daemon.until(lambda: told(daemon, "fault", what="checkpoint"), 60)
            daemon.kill()
            daemon.wait()
        # what is vouched for must be on the disk itself, not in memory
        acknowledged = max(event["step"] for event in told(daemon, "checkpoint"))
        disk.cut()
        disk.unmount()
        disk.mount()
        log = tmp_path / "log-2"
        with forked(daemons, run, log) as daemon:
            started = daemon.until(lambda: told(daemon, "started"))[0]
            assert started["step"] >= acknowledged, daemon.stderr()
            daemon.until_step(started["step"] + 30)
            daemon.send(signal.SIGTERM)
            assert daemon.wait() == 0, daemon.stderr()
        assert unsound(run, reference(daemons, short_run, tmp_path, last_step(run))) == []
    tally("real faults")


def test_a_file_system_gone_read_only(
    daemons: Zygote, short_run: RunDirectory, tmp_path: Path, tally: Tally
) -> None:
    with loop_disk(options="errors=remount-ro") as disk:
        run = copied(short_run, disk.path / "run", steps=ENDLESS, checkpoint_every=10)
        with forked(daemons, run, tmp_path / "log") as daemon:
            daemon.until(lambda: told(daemon, "checkpoint", step=20))
            disk.break_down()
            for what in ("history", "checkpoint", "events"):
                if what != "events":
                    daemon.until(lambda: told(daemon, "fault", what=what))  # noqa: B023
            steps = len(told(daemon, "step"))
            daemon.until(lambda: len(told(daemon, "step")) > steps + 30)  # it trains on
            daemon.send(signal.SIGTERM)
            assert daemon.wait() == errors.LAST_WRITE_FAILED, daemon.stderr()
            assert "Traceback" not in daemon.stderr()
        acknowledged = max(event["step"] for event in told(daemon, "checkpoint"))
        with forked(daemons, run, tmp_path / "log-2") as daemon:
            assert daemon.wait() == errors.IO
            assert "read-only" in daemon.stderr() and "Traceback" not in daemon.stderr()
        mend(disk)
        with forked(daemons, run, tmp_path / "log-3") as daemon:
            assert daemon.until(lambda: told(daemon, "started"))[0]["step"] >= acknowledged
            daemon.until_step(acknowledged + 60)
            daemon.send(signal.SIGTERM)
            assert daemon.wait() == 0
        assert unsound(run, reference(daemons, short_run, tmp_path, last_step(run))) == []
    tally("real faults")


def mend(disk: LoopDisk) -> None:
    disk.unmount()
    subprocess.run(["fsck.ext4", "-p", "-f", disk.device], capture_output=True, check=False)
    disk.mount()


def test_a_limit_on_the_size_of_files(
    daemons: Zygote, short_run: RunDirectory, tmp_path: Path, tally: Tally
) -> None:
    """RLIMIT_FSIZE cuts a write short, then refuses it: below a checkpoint, then below all."""
    run = copied(short_run, tmp_path / "run", steps=ENDLESS, checkpoint_every=10)
    with forked(daemons, run, tmp_path / "log") as daemon:
        daemon.until(lambda: told(daemon, "checkpoint", step=10))
        daemon.kill()
    with forked(daemons, run, tmp_path / "log-2", file_size=500_000) as daemon:
        daemon.until(lambda: told(daemon, "fault", what="checkpoint"))
        assert "File too large" in alarm(run)
        daemon.until_step(last_step(run) + 30)
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == errors.LAST_WRITE_FAILED
    size = run.history.stat().st_size + 1000
    with forked(daemons, run, tmp_path / "log-3", file_size=size) as daemon:
        daemon.until(lambda: told(daemon, "fault", what="history"))
        steps = len(told(daemon, "step"))
        daemon.until(lambda: len(told(daemon, "step")) > steps + 10)
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == errors.LAST_WRITE_FAILED
    with forked(daemons, run, tmp_path / "log-4") as daemon:
        daemon.until(lambda: told(daemon, "replay"))
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == 0
    assert find(run, "replay", verdict="differs") is None
    assert unsound(run, reference(daemons, short_run, tmp_path, last_step(run))) == []
    tally("real faults")


BLKIO = Path("/sys/fs/cgroup/blkio")


@contextlib.contextmanager
def slow(disk: LoopDisk, rate: int) -> Iterator[Path]:
    """Yield a group of processes that may write `rate` bytes a second to `disk`; 0: no limit."""
    if not (BLKIO / "blkio.throttle.write_bps_device").exists():
        pytest.skip("no cgroup v1 with blkio here: the slow disk goes untested")
    group = BLKIO / f"andread-{os.getpid()}"
    group.mkdir()
    number = Path(disk.device).stat().st_rdev
    (group / "blkio.throttle.write_bps_device").write_text(
        f"{os.major(number)}:{os.minor(number)} {rate}"
    )
    try:
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (BLKIO / "cgroup.procs").write_text(pid)
        group.rmdir()


def test_a_disk_that_crawls(
    daemons: Zygote, short_run: RunDirectory, tmp_path: Path, tally: Tally
) -> None:
    """No checkpoint that is due is skipped, and a stop waits for the last one to be durable."""
    with loop_disk() as disk:
        run = copied(short_run, disk.path / "run", steps=ENDLESS, checkpoint_every=10)
        set_run(run, keep_last=100)
        with slow(disk, 1 << 20) as group, forked(daemons, run, tmp_path / "log") as daemon:
            daemon.until(lambda: told(daemon, "checkpoint", step=0))
            (group / "cgroup.procs").write_text(str(daemon.process.pid))
            daemon.until(lambda: told(daemon, "checkpoint", step=30))
            took = [event["seconds"] for event in told(daemon, "checkpoint")][1:]
            assert max(took) > 0.3, f"the disk does not crawl: {took}"
            daemon.send(signal.SIGTERM)
            assert daemon.wait(120) == 0, daemon.stderr()
        assert "fault" not in daemon.stderr()
        last = last_step(run)
        due = [*range(0, last + 1, 10), *([last] if last % 10 else [])]
        assert run.checkpoint_steps() == due
        assert unsound(run, reference(daemons, short_run, tmp_path, last)) == []
    tally("real faults")
