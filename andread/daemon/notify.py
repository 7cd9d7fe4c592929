"""sd_notify, and nothing else of the daemon speaks it: readiness, status, watchdog, patience.

systemd is told

    READY=1                  when training can begin, or ends well before that
    STATUS=                  what the run does, at most twice a second
    WATCHDOG=1               by the training thread, when it has got somewhere
    WATCHDOG_USEC=           ten times the slowest recent step; never less than the unit says
    STOPPING=1               as soon as a stop is heard
    EXTEND_TIMEOUT_USEC=     again and again while loading, up to an hour, and while stopping, up to
                             twice the slowest recent step and write, and beyond that while its
                             checkpoint gets on: each buys half a minute

Where nobody listens, or its library is not installed, all of this is silence.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Final

LOADING_LIMIT: Final = 3600.0
"""Seconds that start-up is given, however large the checkpoint and slow the disk."""
UNMEASURED_LIMIT: Final = 1800.0
"""Seconds that a stop is given before the first step was measured: it may be compiling."""
WATCHDOG_STEPS: Final = 10
"""Steps of the slowest kind that may pass without a sign of life."""

_BOUGHT: Final = 30.0
_EVERY: Final = 10.0
_QUIET: Final = 0.5
_RECENT: Final = 50


def notify(*lines: str) -> bool:
    """Send `lines` such as `READY=1` to systemd; return whether anybody listens."""
    if not os.environ.get("NOTIFY_SOCKET"):
        return False
    try:
        from systemd import daemon
    except ImportError:
        return False
    return bool(daemon.notify("\n".join(lines)))


class Notifier:
    """Tells systemd how one life of the daemon goes. Any thread may call it."""

    def __init__(self) -> None:
        self._floor = int(os.environ.get("WATCHDOG_USEC") or 0) / 1e6
        self._watchdog = self._floor
        self._steps: deque[float] = deque(maxlen=_RECENT)
        self._writes: deque[float] = deque(maxlen=_RECENT)
        self._told: dict[str, float] = {}
        self._settled = threading.Event()  # ready, or stopping: start-up needs no more time
        self._stopping = threading.Event()

    def loading(self) -> None:
        """Ask for more time until `ready`."""
        self._patiently(LOADING_LIMIT, self._settled)

    def ready(self) -> None:
        """Tell that training can begin."""
        self._settled.set()
        notify("READY=1")

    def status(self, text: str, hurry: bool = True) -> None:
        """Show `text` in `systemctl status`; without `hurry` only if the last one is old enough."""
        if self._due("status") or hurry:
            notify("STATUS=" + text.replace("\n", " "))

    def beat(self) -> None:
        """Feed the watchdog; while stopping, buy time for what gets on, however slow the disk."""
        if self._floor and self._due("watchdog"):
            notify("WATCHDOG=1")
        if self._stopping.is_set() and self._due("patience"):
            notify(f"EXTEND_TIMEOUT_USEC={_BOUGHT * 1e6:.0f}")

    def stepped(self, seconds: float) -> None:
        """Take note of how long a step took, and feed the watchdog."""
        self._steps.append(seconds)
        bound = max(self._floor, WATCHDOG_STEPS * max(self._steps))
        if self._floor and not 0.8 * self._watchdog <= bound <= self._watchdog:
            self._watchdog = bound
            notify(f"WATCHDOG_USEC={bound * 1e6:.0f}", "WATCHDOG=1")
        self.beat()

    def wrote(self, seconds: float) -> None:
        """Take note of how long a checkpoint took."""
        self._writes.append(seconds)

    def stopping(self) -> None:
        """Tell that a stop is heard, once, and go on asking for the time that it needs."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._settled.set()
        notify("STOPPING=1")
        self._patiently(self.stop_limit(), threading.Event())

    def stop_limit(self) -> float:
        """Return the seconds that a stop may take: twice the slowest recent step and write."""
        if not self._steps:
            return UNMEASURED_LIMIT
        return 2 * (max(self._steps) + max(self._writes, default=0.0))

    def _due(self, what: str) -> bool:
        """Tell whether `what` was last sent long enough ago, and take it as sent."""
        now = time.monotonic()
        if now - self._told.get(what, -_QUIET) < _QUIET:
            return False
        self._told[what] = now
        return True

    def _patiently(self, limit: float, enough: threading.Event) -> None:
        """Extend systemd's limit, in a thread of its own, for `limit` seconds or until `enough`."""
        deadline = time.monotonic() + limit

        def extend() -> None:
            while (left := deadline - time.monotonic()) > 0 and not enough.is_set():
                if not notify(f"EXTEND_TIMEOUT_USEC={min(left, _BOUGHT) * 1e6:.0f}"):
                    return
                enough.wait(_EVERY)

        threading.Thread(target=extend, name="patience", daemon=True).start()
