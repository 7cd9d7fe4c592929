"""Hours of trouble for one run: `make soak`, or python -m tests.durability.soak --minutes 60.

A tiny model is trained for thousands of steps on a disk of its own while signals, kills, pivots,
snapshots, full disks and power cuts come at random. For the second half of the time the same number
of steps is trained undisturbed, under the same policies from the same steps on. In the end there is
one history without a gap, and both runs have the same bits.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from andread.rundir import lock
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import read_policies
from tests.durability.disks import LoopDisk, loop_disk, own_mounts
from tests.durability.forked import ENDLESS, Forked, copied, forked, set_run, told, unsound
from tests.durability.zygote import Zygote, zygote
from tests.process.harness import copy_run, entries, last_step, make_run
from tests.rundir.helpers import fill

EVERY = 25
SHARE_OF_TROUBLE = 0.45
"""Of the time: what was trained must be trained once more, without interruptions."""


class Soak:
    """One run in trouble."""

    def __init__(
        self, daemons: Zygote, disk: LoopDisk, run: RunDirectory, place: Path, seed: int
    ) -> None:
        self.daemons, self.disk, self.run, self.place = daemons, disk, run, place
        self.rng = random.Random(seed)
        self.happened: Counter[str] = Counter()
        self.faults: list[str] = []
        self.acknowledged = -1
        self._daemon: Forked | None = None
        self._lives = 0

    def go_on(self, until: float) -> None:
        """Make trouble until `until` on the monotonic clock, then stop the run well."""
        troubles: list[tuple[Callable[[], None], int]] = [
            (self.usr1, 6),
            (self.snapshot, 2),
            (self.terminate, 4),
            (self.kill, 6),
            (self.cut, 4),
            (self.full, 2),
            (self.pivot, 1),
        ]
        deeds, weights = zip(*troubles, strict=True)
        while time.monotonic() < until and not self.faults:
            self.alive()
            time.sleep(self.rng.uniform(0.2, 3.0))
            deed = self.rng.choices(deeds, weights)[0]
            deed()
            self.happened[deed.__name__] += 1
            if sum(self.happened.values()) % 20 == 0:
                self.say()
        self.alive()
        self.snapshot()  # beyond the start and a replay: a stop in there writes nothing
        self.terminate()

    def say(self) -> None:
        told = ", ".join(f"{number} {name}" for name, number in sorted(self.happened.items()))
        print(f"soak: step {last_step(self.run):,}: {self._lives} lives, {told}", flush=True)

    def fault(self, text: str) -> None:
        print(f"soak: FAULT: {text}", flush=True)
        self.faults.append(text)

    def alive(self) -> None:
        """Have a daemon that trains."""
        if lock.holder(self.run.lock) is not None:
            return
        self._lives += 1
        log = self.place / f"log-{self._lives % 50}"
        log.unlink(missing_ok=True)
        self._daemon = Forked(self.daemons, self.run, log)
        try:
            started = self._daemon.until(lambda: told(self._daemon, "started"))[0]  # type: ignore[arg-type]
        except AssertionError as error:
            self.fault(f"it does not start: {error}")
            return
        if started["step"] < self.acknowledged:
            self.fault(f"step {self.acknowledged} was acknowledged, it resumed {started['step']}")
        for kind in ("rejected", "history_fault"):
            if told(self._daemon, kind):
                self.fault(f"{kind}: {told(self._daemon, kind)}")

    def end(self) -> int:
        """Wait for the daemon to end; take in what it vouched for; return its exit code."""
        deadline = time.monotonic() + 60
        while lock.holder(self.run.lock) is not None:
            if time.monotonic() > deadline:
                self.fault("it does not end")
                lock.signal_holder(self.run.lock, signal.SIGKILL)
            time.sleep(0.01)
        if self._daemon is None:
            return 0
        code = self._daemon.wait()
        steps = [event["step"] for event in told(self._daemon, "checkpoint")]
        self.acknowledged = max([self.acknowledged, *steps])
        if told(self._daemon, "replay", verdict="differs"):
            self.fault("a replay differs")
        if "Traceback" in self._daemon.stderr():
            self.fault(self._daemon.stderr()[-2000:])
        self._daemon = None
        return code

    def usr1(self) -> None:
        lock.signal_holder(self.run.lock, signal.SIGUSR1)

    def snapshot(self) -> None:
        self.andrectl("snapshot")

    def terminate(self) -> None:
        lock.signal_holder(self.run.lock, signal.SIGTERM)
        if (code := self.end()) != 0:
            self.fault(f"SIGTERM: it ended with {code}")

    def kill(self) -> None:
        lock.signal_holder(self.run.lock, signal.SIGKILL)
        self.end()

    def cut(self) -> None:
        if self.rng.random() < 0.5:
            lock.signal_holder(self.run.lock, self.rng.choice([signal.SIGUSR1, signal.SIGTERM]))
            time.sleep(self.rng.uniform(0, 0.02))
        pid = lock.holder(self.run.lock)
        self.disk.cut()
        if self._daemon is not None:
            self._daemon.kill()
            self.end_without_disk()
        elif pid is not None and psutil.pid_exists(pid):  # one that andrectl started
            process = psutil.Process(pid)
            process.kill()
            process.wait(20)
        self.disk.unmount()
        self.disk.mount()

    def end_without_disk(self) -> None:
        assert self._daemon is not None
        steps = [event["step"] for event in told(self._daemon, "checkpoint")]
        self.acknowledged = max([self.acknowledged, *steps])
        self._daemon = None

    def full(self) -> None:
        ballast = fill(self.disk.path)
        time.sleep(self.rng.uniform(0.3, 2.0))
        os.truncate(ballast, 0)
        ballast.unlink()

    def pivot(self) -> None:
        cap = round(self.rng.uniform(0.6, 0.95), 4)
        self.andrectl("pivot", "--caps", f"topics={cap}", "--at", "step")
        if self._daemon is not None and self._daemon.process.poll() is not None:
            self.end_without_disk()  # andrectl has stopped it, and started another

    def andrectl(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "andrectl", "--run", str(self.run.path), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if done.returncode:
            self.fault(f"andrectl {' '.join(arguments)}: {done.returncode}: {done.stderr}")


def undisturbed(
    daemons: Zygote, base: RunDirectory, run: RunDirectory, place: Path
) -> RunDirectory:
    """Return the run that had the same policies and no trouble, as far as `run` has come."""
    twin = copied(base, place / "twin", steps=last_step(run), checkpoint_every=ENDLESS)
    twin.policy.write_bytes(run.policy.read_bytes())
    with forked(daemons, twin, place / "twin.log") as daemon:
        code = daemon.wait(24 * 3600)
        assert code == 0, daemon.stderr()[-3000:]
    return twin


def main() -> int:
    """Soak one run; return 1 if anything is wrong with it."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    own_mounts()
    print(f"soak: {asked.minutes:g} minutes, seed {asked.seed}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="andread-soak-", dir="/dev/shm") as directory,
        zygote(torch=True) as daemons,
        loop_disk(256 << 20) as disk,
    ):
        place = Path(directory)
        base = make_run(place / "base", steps=ENDLESS, every=EVERY, keep=3)
        set_run(base, sample_every=200)
        run = copied(base, disk.path / "run")
        soak = Soak(daemons, disk, run, place, asked.seed)
        begun = time.monotonic()
        try:
            soak.go_on(begun + 60 * asked.minutes * SHARE_OF_TROUBLE)
        finally:
            soak.say()
            lock.signal_holder(run.lock, signal.SIGKILL)
        if not soak.faults:
            print("soak: the same steps once more, undisturbed", flush=True)
            kept = copy_run(run, place / "kept")
            twin = undisturbed(daemons, base, kept, place)
            soak.faults += unsound(kept, twin)
        steps, policies = len(entries(run)), len(read_policies(run.policy))
        minutes = (time.monotonic() - begun) / 60
    verdict = "; ".join(soak.faults) or "one history, no gap, and the bits of the undisturbed run"
    total = sum(soak.happened.values())
    print(
        f"soak: {minutes:.0f} minutes, {steps:,} steps, {policies} policies, {total} troubles: "
        f"{verdict}"
    )
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())
