"""Time and process identity that survive a wall clock being set and a pid being reused.

Ages, limits and waits use the boot clock; a process is identified by (boot, pid, start ticks).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@cache
def boot_id() -> str:
    """Return the kernel's random identity of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def boot_seconds() -> float:
    """Return seconds since boot, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start_ticks(pid: int) -> int | None:
    """Return when `pid` started, in clock ticks since boot; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[19])


@dataclass(frozen=True)
class ProcessIdentity:
    """One process, never to be taken for another."""

    boot: str
    pid: int
    ticks: int

    @classmethod
    def own(cls) -> ProcessIdentity:
        """Return the identity of the calling process."""
        pid = os.getpid()
        ticks = start_ticks(pid)
        assert ticks is not None, "a process without an entry in /proc"
        return cls(boot_id(), pid, ticks)

    @property
    def age(self) -> float:
        """Return seconds since the process started."""
        return boot_seconds() - self.ticks / os.sysconf("SC_CLK_TCK")
