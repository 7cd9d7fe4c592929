"""A daemon that does nothing but keep the protocol: lock, presence, events, signals, requests.

    python fake_daemon.py DIR MODE

Modes: `train`; `fail` (ends with 78 before it trains); `finished` (ends with 0 at once); `refuse`
(refuses requests); `silent` (never answers); `die` (killed by what asks for a snapshot);
`badwrite` (stops with 81); `full` (as that, and no event can be recorded); `beaten` (another start
is quicker).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from andread.rundir import clock, events, lock, requests
from andread.rundir.layout import RunDirectory
from andread.rundir.lock import RunLock

STEP = 7


def main() -> int:
    run, mode = RunDirectory(sys.argv[1]), sys.argv[2]
    assert signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, []), "launched without mask"
    if mode == "fail":
        print("run.toml is wrong", file=sys.stderr)
        return 78
    if mode == "finished":
        events.emit(run.events, "finished", step=STEP)
        return 0
    if mode == "beaten":
        subprocess.Popen([sys.executable, __file__, sys.argv[1], "train"])
        while lock.holder(run.lock) is None:
            time.sleep(0.02)
        print("of the quicker one", file=sys.stderr)
        return 75
    own = clock.ProcessIdentity.own()
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: asked.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    emit = (lambda *_, **__: None) if mode == "full" else events.emit
    with RunLock.acquire(run.lock) as held:
        told = {"pid": own.pid, "boot": own.boot, "ticks": own.ticks, "phase": "training"}
        told |= {"step": STEP, "steps": 300, "steps_per_minute": 60.0, "device": "cpu"}
        told["supervisor"] = {"kind": os.environ["ANDREAD_SUPERVISOR"]}
        told["alarm"] = "the disk is full" if mode == "full" else ""
        held.describe(told | {"up": clock.boot_seconds()})
        start = {"step": 0, "steps": 300, "device": "cpu", "precision": "fp32"}
        emit(run.events, "started", pid=own.pid, checkpoint=None, **start)
        while signal.SIGTERM not in asked:
            if signal.SIGUSR1 in asked:
                asked.clear()
                serve(run, mode, own)
            time.sleep(0.02)
        held.describe(told | {"phase": "stopping", "up": clock.boot_seconds()})
        time.sleep(1.0)
        checkpoint = {"step": STEP, "path": str(run.checkpoint(STEP)), "sha256": "a" * 64}
        emit(run.events, "checkpoint", reasons=["stop"], **checkpoint)
        end = {"why": "SIGTERM", "exit_code": 81 if mode in ("badwrite", "full") else 0}
        emit(run.events, "stopped", step=STEP, **end)
        held.describe(told | end | {"phase": "stopped", "up": clock.boot_seconds()})
    return int(end["exit_code"])


def serve(run: RunDirectory, mode: str, own: clock.ProcessIdentity) -> None:
    if mode == "die":
        os.kill(own.pid, signal.SIGKILL)
    lawful, void = requests.take(run, own)
    assert not void
    for request in lawful:
        if mode != "silent":
            requests.discard(run, request.id)
        if mode == "refuse":
            events.emit(run.events, "refused", id=request.id, why="it is not wanted")
        elif mode != "silent":
            path = str(run.checkpoint(STEP))
            fields = {"id": request.id, "step": STEP, "path": path, "sha256": "b" * 64}
            events.emit(run.events, "acknowledged", **fields)


if __name__ == "__main__":
    sys.exit(main())
