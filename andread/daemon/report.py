"""The daemon's reporter: events to the run directory, progress to stderr, presence to the lock.

On a terminal every step has its line. Otherwise each event and every `log_every`-th step is a
record of the journal or, where stderr is not that, a JSON object on a line. Nothing here may fail
the run: a full disk or a closed terminal costs the report, and raises an alarm where one can still
be seen. Any thread may report.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from typing import Any, Final, TextIO

import orjson

from andread.daemon import journal
from andread.daemon.notify import Notifier
from andread.duties import Progress
from andread.rundir import clock, events
from andread.rundir.clock import ProcessIdentity
from andread.rundir.errors import AndreadError
from andread.rundir.layout import RunDirectory
from andread.rundir.lock import RunLock

_BACKLOG: Final = 1000
"""Events kept while the disk takes none; the oldest go first."""

_LOUD: Final = {"fault", "rejected", "history_fault", "diverged", "replay", "zombie", "spike"}


class DaemonReporter:
    """See `duties.Reporter`."""

    def __init__(
        self,
        run: RunDirectory,
        lock: RunLock,
        supervisor: dict[str, Any],
        manager: Notifier,
        log_every: int = 1,
    ) -> None:
        self._run = run
        self._lock = lock
        self._manager = manager
        self._journal = journal.connected()
        self._stream: TextIO = sys.stderr
        self._watched = self._stream.isatty()
        self.log_every = log_every
        own = ProcessIdentity.own()
        self._presence: dict[str, Any] = {
            "pid": own.pid,
            "boot": own.boot,
            "ticks": own.ticks,
            "phase": "starting",
            "supervisor": supervisor,
        }
        self._alarms: dict[str, str] = {}
        self._backlog: deque[dict[str, Any]] = deque(maxlen=_BACKLOG)
        self._mutex = threading.RLock()
        self._describe()

    def event(self, kind: str, /, **fields: Any) -> None:
        """Append an event to the run's and show it; what cannot be written now follows later."""
        with self._mutex:
            self._backlog.append(events.make(kind, **fields))
            try:
                while self._backlog:
                    events.append(self._run.events, self._backlog[0])
                    self._backlog.popleft()
            except (OSError, AndreadError) as error:
                self._raise("events", f"events cannot be recorded: {error}")
            else:
                self._clear("events")
        if kind == "checkpoint":
            self._manager.wrote(fields["seconds"])
        self._show(kind, fields, _line(kind, fields))

    def progress(self, progress: Progress) -> None:
        """Show a finished step and put it into the lock's content."""
        self._describe(
            step=progress.step,
            steps=progress.steps,
            loss=progress.loss,
            steps_per_minute=progress.steps_per_minute,
        )
        regular = progress.step % self.log_every == 0 or progress.step == progress.steps
        if self._watched or regular:
            told = {
                "step": progress.step,
                "loss": progress.loss,
                "lr": progress.lr,
                "grad_norm": progress.grad_norm,
                "seconds": round(progress.seconds, 4),
            }
            self._show("step", told, progress_line(progress))
        self._manager.stepped(progress.seconds)
        loss = "-" if progress.loss is None else f"{progress.loss:.4f}"
        self._manager.status(
            f"{'replaying ' if progress.replayed else ''}step {progress.step} of "
            f"{progress.steps}, loss {loss}, {progress.steps_per_minute or 0:.1f} steps/min",
            hurry=False,
        )

    def phase(self, phase: str, waiting: str = "") -> None:
        """Put the phase into the lock's content."""
        if (phase, waiting) == (self._presence.get("phase"), self._presence.get("waiting", "")):
            return
        self._describe(phase=phase, waiting=waiting)
        if phase not in ("training", "replaying"):  # these have their steps to tell
            after = f" after step {self._presence['step']}" if "step" in self._presence else ""
            self._manager.status(f"{phase}{after}" + (f": {waiting}" if waiting else ""))

    def beat(self) -> None:
        """Feed systemd's watchdog."""
        self._manager.beat()

    def tell(self, **fields: Any) -> None:
        """Put other facts into the lock's content."""
        self._describe(**fields)

    def alarm(self, what: str, detail: str) -> None:
        """Raise an alarm: in the lock's content and, once, as an event."""
        if self._raise(what, detail):
            self.event("fault", what=what, detail=detail)

    def healed(self, what: str) -> None:
        """Clear an alarm."""
        if self._clear(what):
            self.event("healed", what=what)

    def _raise(self, what: str, detail: str) -> bool:
        """Put an alarm into the lock's content; tell whether it is new."""
        with self._mutex:
            new = self._alarms.get(what) != detail
            self._alarms[what] = detail
            if new:
                self._describe()
            return new

    def _clear(self, what: str) -> bool:
        """Take an alarm out of the lock's content; tell whether it was there."""
        with self._mutex:
            there = self._alarms.pop(what, None) is not None
            if there:
                self._describe()
            return there

    def say(self, text: str) -> None:
        """Tell whoever watches, in words."""
        self._show("note", {"text": text}, text)

    def _describe(self, **fields: Any) -> None:
        with self._mutex:
            alarm = "; ".join(self._alarms.values())
            self._presence |= {**fields, "alarm": alarm, "up": round(clock.boot_seconds(), 3)}
            self._lock.describe(self._presence)

    def _show(self, kind: str, fields: dict[str, Any], line: str) -> None:
        """Show `line` to whoever watches, or keep the record where nobody does."""
        with contextlib.suppress(OSError, ValueError):
            if self._journal:
                journal.send(self._run.path.name, kind, fields, line, _loud(kind, fields))
            elif self._watched:
                self._print(line)
            else:
                self._print(orjson.dumps({"event": kind, **fields}).decode())

    def _print(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


def _line(kind: str, fields: dict[str, Any]) -> str:
    """Return the line of an event for a terminal."""
    told = "  ".join(f"{key} {_brief(value)}" for key, value in fields.items() if value is not None)
    return f"{'!!' if _loud(kind, fields) else '--'} {kind}  {told}"


def _loud(kind: str, fields: dict[str, Any]) -> bool:
    """Tell whether an event needs somebody's eye."""
    if kind == "stopped":
        return fields.get("exit_code") != 0
    return kind in _LOUD and not (kind == "replay" and fields.get("verdict") == "exact")


def _brief(value: Any) -> str:
    """Return `value` short enough for one line."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_brief(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return ", ".join(map(_brief, value))
    if isinstance(value, str) and len(value) == 64 and " " not in value:
        return value[:12] + "…"
    return str(value)


def progress_line(progress: Progress) -> str:
    """Return the line of a step for a terminal."""
    loss = "skipped" if progress.loss is None else f"{progress.loss:.4f}"
    norm = "-" if progress.grad_norm is None else f"{progress.grad_norm:.3f}"
    rate = progress.steps_per_minute
    left = ""
    if rate:
        minutes, seconds = divmod(round((progress.steps - progress.step) / rate * 60), 60)
        left = f"  {rate:.1f} steps/min  {minutes // 60}:{minutes % 60:02}:{seconds:02} left"
    return (
        f"{'replayed' if progress.replayed else 'step'} {progress.step}/{progress.steps}  "
        f"loss {loss}  lr {progress.lr:.2e}  norm {norm}  {progress.seconds * 1000:.0f} ms{left}"
    )
