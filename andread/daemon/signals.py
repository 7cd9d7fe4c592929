"""Signals, recorded at once and acted upon at the next step boundary.

    SIGTERM, SIGHUP   finish the step, write its checkpoint, exit
    SIGINT            the same; a second one gives up at once (exit 130)
    SIGUSR1           finish the step, write its checkpoint, go on

The handler only records. Python runs no handler during one long C call, so a thread on the
wake-up descriptor sees a stop at once and calls `on_stop`, to tell a supervisor.

This module imports nothing heavy: handlers must stand before anything else is loaded.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Final

from andread.rundir.errors import INTERRUPTED

_STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """The signals that this process got. Install once, in the main thread."""

    def __init__(self) -> None:
        self._seen: Counter[int] = Counter()
        self._served = 0
        self.on_stop: Callable[[], None] | None = None

    def install(self) -> None:
        """Put the handlers in place, then let SIGUSR1 in, which launchers block across exec."""
        reader, writer = socket.socketpair()
        for end in (reader, writer):
            end.setblocking(end is reader)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in (*_STOPS, signal.SIGUSR1):
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGTERM:
                signal.signal(number, self._record)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1, *_STOPS})
        self._writer = writer
        threading.Thread(target=self._wait, args=(reader,), name="signals", daemon=True).start()

    def stopping(self) -> bool:
        """Tell whether the process was asked to end."""
        return any(self._seen[number] for number in _STOPS)

    def take_checkpoint_signal(self) -> bool:
        """Tell whether SIGUSR1 came since the last call. Signals coalesce."""
        seen = self._seen[signal.SIGUSR1]
        new = seen != self._served
        self._served = seen
        return new

    def _record(self, number: int, frame: FrameType | None) -> None:
        self._seen[number] += 1
        if self._seen[signal.SIGINT] > 1:
            os._exit(INTERRUPTED)  # nothing to clean up: every commit is atomic

    def _wait(self, reader: socket.socket) -> None:
        """Call `on_stop` as soon as a stop has arrived; runs in a thread of its own."""
        while data := reader.recv(4096):
            if any(number in data for number in _STOPS) and self.on_stop is not None:
                self.on_stop()
