"""Waiting for a daemon, and telling meanwhile what it does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from andread.rundir import clock, lock, presence
from andread.rundir.errors import AndreadError, BusyError
from andread.rundir.layout import RunDirectory
from andread.rundir.presence import Presence
from andrectl import render

POLL: Final = 0.1
"""Seconds between two looks."""
Event = dict[str, Any]


class DaemonEnded(AndreadError):  # noqa: N818 - told with the daemon's own exit code
    """The daemon ended before it had done what was asked of it."""

    def __init__(self, message: str, hint: str, exit_code: int) -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code  # type: ignore[misc]


def last(said: Sequence[Event], kind: str) -> Event:
    """Return the last event of `kind`, an empty one if there is none."""
    return next((event for event in reversed(said) if event["event"] == kind), {})


def wait(
    done: Callable[[], bool],
    timeout: float | None,
    narrate: Callable[[], None],
    message: str,
    hint: str,
) -> None:
    """Poll `done` until it is true; `BusyError` with `message` after `timeout` seconds."""
    deadline = None if timeout is None else clock.boot_seconds() + timeout
    while not done():
        if deadline is not None and clock.boot_seconds() >= deadline:
            raise BusyError(f"{message} after {render.duration(timeout)}", hint)
        narrate()
        time.sleep(POLL)


class Narrator:
    """Tells on stderr what the daemon `pid`, or whichever there is, is doing, when that changes."""

    repeat = math.inf
    """Seconds after which what is unchanged is told again."""

    def __init__(self, run: RunDirectory, pid: int | None) -> None:
        self._run, self._pid = run, pid
        self._told: tuple[str, ...] = ()
        self._when = 0.0

    def __call__(self) -> None:
        """Tell what is new."""
        now = presence.read(self._run.lock)
        if now.pid != (self._pid or lock.holder(self._run.lock)) or not now.phase:
            return
        what = (now.phase, now.waiting, now.alarm)
        if what != self._told or clock.boot_seconds() - self._when > self.repeat:
            self._told, self._when = what, clock.boot_seconds()
            alarm = f"; alarm: {now.alarm}" if now.alarm else ""
            render.note(f"{self.text(now)}{alarm}")

    def text(self, now: Presence) -> str:
        """Return `now` in words."""
        waiting = f" ({now.waiting})" if now.waiting else ""
        where = f", step {now.step:,} of {now.steps:,}" if now.steps else ""
        return f"pid {now.pid}: {now.phase}{waiting}{where}"
