"""The power cut for real: ext4 stopped without a flush in the middle of a life, again and again."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from andread.rundir import pivot, presence
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import read_policies
from tests.durability.conftest import Tally
from tests.durability.disks import HOSTILE, LoopDisk, loop_disk
from tests.durability.forked import ENDLESS, copied, forked, reference, told, unsound
from tests.durability.judge import Acknowledged, violations
from tests.durability.life import new_run
from tests.durability.zygote import Zygote
from tests.process.harness import find, last_step
from tests.process.pivoting import andrectl, every_step_once, spawn, until

PARAMETERS = 20_000
"""240 kB a checkpoint: many pages to be torn."""
CUTS = 80
OPTIONS = ("", HOSTILE)


@contextlib.contextmanager
def neighbour(light: Zygote, disk: LoopDisk, output: Path) -> Iterator[None]:
    process = light.start("neighbour", disk.path, output=output)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def take_in(acknowledged: Acknowledged, output: Path) -> int:
    """Read what a writer vouched for; return how many lines that is."""
    lines = output.read_text().splitlines() if output.exists() else []
    for line in lines:
        what, _, step = line.partition(" ")
        if what == "unpin":
            acknowledged.pins.discard(int(step))
        elif what in ("checkpoint", "policy", "pin"):
            acknowledged(what, int(step))
    return len(lines)


def cut_again_and_again(
    light: Zygote, disk: LoopDisk, place: Path, cuts: int, seed: int, mutant: str = ""
) -> tuple[int, list[str], int]:
    """Cut the power in `cuts` lives of one run; return how often, the violations, the vouched."""
    rng = random.Random(seed)
    run = new_run(RunDirectory(disk.path / "run"))
    acknowledged, found, vouched = Acknowledged(), [], 0
    for number in range(1, cuts + 1):
        output = place / f"{seed}-{number}.output"
        with neighbour(light, disk, place / "neighbour.output"):
            writer = light.start(
                "writer", run.path, PARAMETERS, rng.getrandbits(30), mutant, output=output
            )
            time.sleep(rng.uniform(0.005, 0.12))
            if rng.random() < 0.2:
                writer.send_signal(signal.SIGTERM)
                time.sleep(rng.uniform(0.0, 0.01))
            disk.cut()
            writer.kill()
            writer.wait()
        vouched += take_in(acknowledged, output)
        output.unlink(missing_ok=True)
        disk.unmount()
        disk.mount()
        faults = violations(run, acknowledged, PARAMETERS)
        if faults:
            return number, [f"cut {number}: {fault}" for fault in faults], vouched
        acknowledged(*("checkpoint", max(run.checkpoint_steps())))  # the judge went on with it
    return cuts, found, vouched


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("options", OPTIONS, ids=["default", "hostile"])
def test_power_cuts(light: Zygote, tmp_path: Path, tally: Tally, options: str, seed: int) -> None:
    with loop_disk(options=options) as disk:
        cuts, found, vouched = cut_again_and_again(light, disk, tmp_path, CUTS, seed)
    tally("power cuts", cuts)
    tally("violations", len(found))
    assert not found, found
    assert vouched > CUTS, "too little was going on"


DAEMON_CUTS = 14


@pytest.mark.parametrize("options", OPTIONS, ids=["default", "hostile"])
def test_power_cuts_under_a_real_daemon(
    daemons: Zygote,
    light: Zygote,
    short_run: RunDirectory,
    tmp_path: Path,
    tally: Tally,
    options: str,
) -> None:
    """Cut while it starts, replays, trains, saves, prunes and stops; in the end the bits are right.

    What it acknowledged is read from what it said, which lies on another disk.
    """
    rng = random.Random(len(options))
    with loop_disk(options=options) as disk:
        run = copied(short_run, disk.path / "run", steps=ENDLESS, checkpoint_every=5)
        acknowledged = -1
        for number in range(DAEMON_CUTS):
            log = tmp_path / f"log-{number}"
            with (
                neighbour(light, disk, tmp_path / "neighbour"),
                forked(daemons, run, log) as daemon,
            ):
                if number % 4:
                    daemon.until(lambda: told(daemon, "started"))
                time.sleep(rng.uniform(0, 0.3))
                if rng.random() < 0.6:
                    daemon.send(rng.choice([signal.SIGTERM, signal.SIGUSR1]))
                    time.sleep(rng.uniform(0, 0.03))
                disk.cut()
                daemon.kill()
            steps = [event["step"] for event in told(daemon, "checkpoint")]
            acknowledged = max([acknowledged, *steps])
            disk.unmount()
            disk.mount()
            kept = run.checkpoint_steps()
            assert max(kept, default=-1) >= acknowledged, f"{acknowledged} was acknowledged: {kept}"
            tally("power cuts")
        log = tmp_path / "log"
        with forked(daemons, run, log) as daemon:
            started = daemon.until(lambda: told(daemon, "started"))[0]
            assert started["step"] >= acknowledged
            assert not told(daemon, "rejected")
            daemon.until(lambda: presence.read(run.lock).step >= started["step"] + 10)
            daemon.send(signal.SIGTERM)
            assert daemon.wait() == 0, daemon.stderr()
        found = unsound(run, reference(daemons, short_run, tmp_path, last_step(run)))
        tally("violations", len(found))
        assert not found, found


def test_power_cuts_in_a_real_pivot(
    daemons: Zygote, short_run: RunDirectory, tmp_path: Path, tally: Tally
) -> None:
    """Cut while andrectl pivots a live run; the pivot is ended then, or made anew, and proven."""
    rng = random.Random(5)
    with loop_disk(options=HOSTILE) as disk:
        run = copied(short_run, disk.path / "run", steps=ENDLESS, checkpoint_every=10)
        for number in range(3):
            with forked(daemons, run, tmp_path / f"log-{number}") as daemon:
                started = daemon.until(lambda: told(daemon, "started"))[0]
                first = read_policies(run.policy)[-1].begins_after
                daemon.until(lambda: last_step(run) > max(first, started["step"]) + 2)  # noqa: B023
                caps = f"topics={0.6 + number / 10}"
                client = spawn(run, "pivot", "--caps", caps, "--at", "step")
                until(lambda: run.pivot.exists() or client.poll() is not None)  # noqa: B023
                time.sleep(rng.uniform(0, 0.8))
                disk.cut()
                client.kill()
                client.communicate()
                end_all_in(run)
            disk.unmount()
            disk.mount()
            policies = read_policies(run.policy)
            if pivot.read(run) is not None:
                proof = andrectl(run, "pivot", "--resume", "--json")
            else:
                andrectl(run, "start")
                until(lambda: last_step(run) > policies[-1].begins_after + 2)  # noqa: B023
                proof = andrectl(run, "pivot", "--caps", caps, "--at", "step", "--json")
            assert json.loads(proof)["proof"]["problems"] == []
            assert pivot.read(run) is None
            andrectl(run, "stop")
            assert every_step_once(run)
            tally("power cuts")
        assert find(run, "replay", verdict="differs") is None


def end_all_in(run: RunDirectory) -> None:
    """Kill the daemons that were started on `run` by a client that is dead, and wait for them."""
    mine = [
        p for p in psutil.process_iter(["cmdline"]) if str(run.path) in (p.info["cmdline"] or [])
    ]
    for process in mine:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(mine, timeout=20)
