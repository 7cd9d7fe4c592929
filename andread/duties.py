"""What the trainer is given by whoever runs it: orders in, reports out.

The trainer knows no signals, no systemd and no command line; a daemon, a test or a notebook can
be its `Control` and its `Reporter`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from andread.rundir.requests import Request


@dataclass(frozen=True)
class Orders:
    """What was asked since the last boundary."""

    checkpoint: bool = False
    """A plain request: a checkpoint at this boundary, nobody waits for an answer."""
    requests: tuple[Request, ...] = ()
    """Requests by name, each to be acknowledged once."""


class Control(Protocol):
    """Who may interrupt the training loop."""

    def stopping(self) -> bool:
        """Tell whether the run is to end at the next step boundary. Cheap: polled everywhere."""

    def confirm(self) -> None:
        """Make sure that the run is still ours, before a step or a checkpoint is written.

        Raises `BusyError` if another process has taken it: nothing more may be written then.
        """

    def orders(self) -> Orders:
        """Return what was asked since the last call. Called at each step boundary."""


@dataclass(frozen=True)
class Progress:
    """One finished step."""

    step: int
    steps: int
    loss: float | None
    lr: float
    grad_norm: float | None
    seconds: float
    steps_per_minute: float | None
    pulls: dict[str, int] = field(default_factory=dict)
    replayed: bool = False


class Reporter(Protocol):
    """Who is told. No report may fail the run: implementations swallow what goes wrong."""

    def event(self, kind: str, /, **fields: Any) -> None:
        """Record something that happened."""

    def progress(self, progress: Progress) -> None:
        """Take note of a finished step."""

    def phase(self, phase: str, waiting: str = "") -> None:
        """Say what the run does now, and what it waits for."""

    def beat(self) -> None:
        """Take note that training gets somewhere. Cheap: called in the middle of long work."""

    def alarm(self, what: str, detail: str) -> None:
        """Raise the alarm `what`; the same one with the same detail is told once."""

    def healed(self, what: str) -> None:
        """Clear the alarm `what` if it is raised."""
