"""What the owner of a run tells about itself in the content of `.lock`, for readers.

Information only: who owns the run is the lock itself (`lock.holder`). A stopped run keeps the
last words of its last owner.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from andread.rundir import lock
from andread.rundir.errors import AndreadError
from andread.rundir.tables import read_table

PHASES = (
    "starting",
    "loading",
    "replaying",
    "training",
    "checkpointing",
    "auditing",
    "holding",
    "stopping",
    "stopped",
)


@dataclass(frozen=True)
class Presence:
    """One snapshot of the owner's state."""

    pid: int = 0
    boot: str = ""
    ticks: int = 0
    phase: str = ""
    """One of `PHASES`."""
    step: int = 0
    """Steps done."""
    steps: int = 0
    """Where training ends."""
    loss: float | None = None
    """Loss of the last step."""
    steps_per_minute: float | None = None
    """Median of the recent steps; None before the second one."""
    device: str = ""
    waiting: str = ""
    """What it waits for, in words."""
    alarm: str = ""
    """What is wrong for now: a disk that is full, a history that cannot be written."""
    exit_code: int | None = None
    """With phase `stopped`: the code that it exits with."""
    why: str = ""
    """With phase `stopped`: why it ended."""
    up: float = 0.0
    """Seconds since boot at which this was written."""
    supervisor: dict[str, Any] = field(default_factory=dict)
    """`kind`: foreground, detached (with `arguments`) or systemd (with `unit`, `manager`)."""


def read(path: Path) -> Presence:
    """Return what the owner of the lock at `path`, present or past, last told."""
    content = lock.describe(path)
    known = {f.name for f in dataclasses.fields(Presence)}
    try:
        return read_table(Presence, {k: v for k, v in content.items() if k in known}, ".lock")
    except AndreadError:
        return Presence()
