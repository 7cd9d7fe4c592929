"""How a run's daemon is started and stopped: as a service of systemd, or as a detached process.

The daemon is known by the run's lock, never by a pid on file. What it does is learnt from
`.events.json`, read from where it ended before the daemon was asked.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from andread.rundir import clock, disk, events, files, lock, presence
from andread.rundir.errors import OS_FAULT, STOPPED, TEMPORARY, AndreadError, BusyError
from andread.rundir.layout import RunDirectory
from andread.rundir.presence import Presence
from andrectl import awaiting, loose, render, service, systemd
from andrectl.awaiting import DaemonEnded, Event

_LOG_LINES: Final = 20
_PATIENCE: Final = 10.0
"""Seconds that a holder of the run has to say that it is a daemon."""
_TRAINS: Final = ("training", "replaying", "checkpointing", "auditing")


class NotRunning(AndreadError):  # noqa: N818 - a state of the run, not a fault
    """The run has no daemon that could be asked."""

    exit_code = STOPPED


def command(run: RunDirectory, options: Sequence[str]) -> list[str]:
    """Return the command line of the daemon of `run`."""
    return [sys.executable, "-m", "andread", "--run", str(run.path.absolute()), *options]


def refuse_if_running(run: RunDirectory) -> None:
    """Raise `BusyError` if `run` has a daemon."""
    if (pid := lock.holder(run.lock)) is not None:
        raise BusyError(
            f"{run.path} is running already (pid {pid})", "andrectl status tells how it is doing"
        )


def daemon(run: RunDirectory, timeout: float | None = None) -> Presence | None:
    """Return what the daemon of `run` tells about itself, None if nobody holds the run.

    Raises `BusyError` if the holder is no daemon, and still holds after some seconds.
    """
    deadline = clock.boot_seconds() + min(_PATIENCE, math.inf if timeout is None else timeout)
    while (pid := lock.holder(run.lock)) is not None:
        told = presence.read(run.lock)
        if told.pid == pid and told.boot == clock.boot_id():
            return told
        if clock.boot_seconds() >= deadline:
            raise BusyError(
                f"{lock.named(pid)} holds the run, and is no daemon (a pivot or an import)",
                "wait until it is done, then try again",
            )
        time.sleep(awaiting.POLL)
    return None


@contextlib.contextmanager
def _usr1_blocked() -> Iterator[None]:
    """Block SIGUSR1 for a child to inherit: one sent before its handlers stand would kill it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _log(run: RunDirectory) -> Iterator[int]:
    """Hold the run's log open to append to; `OSError` for a pipe that nobody reads."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = disk.open(run.log, flags, files.FILE_MODE)
    try:
        os.set_blocking(descriptor, True)
        yield descriptor
    finally:
        os.close(descriptor)


def foreground(run: RunDirectory, options: Sequence[str]) -> None:
    """Become the daemon of `run`, in this terminal; does not return."""
    refuse_if_running(run)
    arguments = command(run, options)
    sys.stdout.flush()
    sys.stderr.flush()
    with _usr1_blocked():
        os.execve(arguments[0], arguments, os.environ | {"ANDREAD_SUPERVISOR": "foreground"})


def start(run: RunDirectory, options: Sequence[str]) -> Event:
    """Start a detached daemon and return its `started` event once it trains.

    A daemon that ends cleanly before that (the run is finished, or it was stopped) gives its last
    event instead. Raises `BusyError` if the run has a daemon, `DaemonEnded` if this one failed.
    """
    refuse_if_running(run)
    if (unit := systemd.unit_of(run)) is not None:
        return service.start(run, unit, options)
    events_from, log_from = loose.file_size(run.events), loose.file_size(run.log)
    with _log(run) as log, _usr1_blocked():
        process = subprocess.Popen(
            command(run, options),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"ANDREAD_SUPERVISOR": "detached"},
        )
    try:
        return _until_it_trains(run, process, events_from, log_from)
    except KeyboardInterrupt:
        render.note(f"the daemon (pid {process.pid}) goes on starting: andrectl status, stop")
        raise
    finally:
        process.returncode = process.poll() or 0  # it is detached: nobody waits for it from here


def _until_it_trains(
    run: RunDirectory, process: subprocess.Popen[bytes], events_from: int, log_from: int
) -> Event:
    """Wait for the `started` event of `process`, or for its end."""
    narrate = awaiting.Narrator(run, process.pid)
    while True:
        ended = process.poll() is not None  # asked first: what it said last is then on file
        said = list(events.read(run.events, events_from))
        for event in said:
            if event["event"] == "started" and event.get("pid") == process.pid:
                return event
        if unrecorded := _unrecorded(run, process.pid):
            narrate()
            return unrecorded
        if ended:
            return _ended_early(run, process.pid, process.returncode, said, log_from)
        narrate()
        time.sleep(awaiting.POLL)


def _unrecorded(run: RunDirectory, pid: int) -> Event:
    """Return the `started` event that the daemon `pid` cannot record; empty if it need not be.

    On a full disk it trains, raises an alarm, and records its events when there is space again.
    """
    now = presence.read(run.lock)
    if now.pid != pid or now.phase not in _TRAINS or not now.alarm or lock.holder(run.lock) != pid:
        return {}
    told = {"pid": pid, "step": now.step, "steps": now.steps, "device": now.device}
    return {"event": "started", **told, "alarm": now.alarm}


def _ended_early(run: RunDirectory, pid: int, code: int, said: list[Event], log_from: int) -> Event:
    """Return how a daemon ended cleanly, else raise with its last word or the end of its log."""
    if code == TEMPORARY:
        refuse_if_running(run)  # another start was quicker
    stopped = last_word(run, pid, said)
    if code == 0:
        return (
            awaiting.last(said, "finished")
            or stopped
            or {"event": "stopped", "why": "it ended cleanly"}
        )
    if stopped.get("why") and stopped.get("exit_code") == code:
        hint = loose.text(stopped.get("hint")) or f"its log: {run.log}"
        raise DaemonEnded(f"the daemon did not train: {loose.text(stopped['why'])}", hint, code)
    for line in log_lines(run.log, log_from):
        render.note(f"  | {line}")
    if code < 0:
        name = signal.Signals(-code).name
        raise DaemonEnded(f"the daemon was killed by {name}", f"see {run.log}", OS_FAULT)
    raise DaemonEnded(
        f"the daemon ended before it trained (exit code {code})", f"its log: {run.log}", code
    )


def log_lines(path: Path, offset: int, count: int = _LOG_LINES) -> list[str]:
    """Return the last `count` lines that the log has got from `offset` on."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(offset, loose.file_size(path) - (64 << 10)))
            return stream.read().decode(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []


@dataclass(frozen=True)
class Stopped:
    """How a daemon ended: its `stopped` event, and its last `checkpoint` event if it wrote one."""

    pid: int
    event: Event
    checkpoint: Event
    log: list[str]
    """The last lines that it logged since it was asked."""


def stop(run: RunDirectory, timeout: float | None) -> Stopped | None:
    """Ask the daemon to stop and wait until it has; None if there is none.

    Raises `BusyError` after `timeout` seconds (None: never), while it goes on stopping, and if
    the run is held by what is no daemon.
    """
    unit = systemd.unit_of(run)
    while True:
        events_from, log_from = loose.file_size(run.events), loose.file_size(run.log)
        if unit is not None:
            pid = lock.holder(run.lock)
            unit.ask("stop", "--no-block", unit.name)  # also where it waits to be started again
            break
        told = daemon(run, timeout)
        pid = told.pid if told else None
        if pid is None or lock.signal_if_holder(run.lock, pid, signal.SIGTERM):
            break
    if pid is None:
        return None

    def gone() -> bool:
        return lock.holder(run.lock) != pid and (unit is None or service.settled(unit))

    try:
        awaiting.wait(
            gone,
            timeout,
            awaiting.Narrator(run, pid),
            f"the daemon (pid {pid}) is still stopping",
            "it goes on: andrectl stop again waits for it",
        )
    except KeyboardInterrupt:
        render.note(f"the daemon (pid {pid}) goes on stopping")
        raise
    said = list(events.read(run.events, events_from))
    word = last_word(run, pid, said)
    return Stopped(pid, word, awaiting.last(said, "checkpoint"), log_lines(run.log, log_from))


def last_word(run: RunDirectory, pid: int, said: Sequence[Event]) -> Event:
    """Return the `stopped` event of the ended daemon `pid`; empty if it left none.

    What a full disk kept from being recorded is in the content of `.lock`.
    """
    if event := awaiting.last(said, "stopped"):
        return event
    now = presence.read(run.lock)
    if now.pid != pid or now.phase != "stopped" or now.exit_code is None:
        return {}
    return {"event": "stopped", "step": now.step, "why": now.why, "exit_code": now.exit_code}
