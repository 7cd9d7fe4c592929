"""A run's daemon as a service of systemd: started through its unit, and waited for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from andread.rundir import events
from andread.rundir.errors import EXIT_CODES, UsageError
from andread.rundir.layout import RunDirectory
from andrectl import awaiting, loose, render
from andrectl.awaiting import DaemonEnded
from andrectl.systemd import Unit


def start(run: RunDirectory, unit: Unit, options: Sequence[str]) -> dict[str, Any]:
    """Start `unit` and return the `started` event of its daemon, or its last one if it ended well.

    Raises `DaemonEnded` with the daemon's own words if it did not train.
    """
    if options:
        raise UsageError(
            f"{unit.name} trains this run, and takes no {' '.join(options)} along",
            f"once: as the run's owner andrectl start --foreground {' '.join(options)}; then start "
            "it as ever",
        )
    if unit.mortal():
        render.note(f"{unit.name} ends with your last session: loginctl enable-linger prevents it")
    events_from = loose.file_size(run.events)
    unit.begin("reset-failed", unit.name).communicate()  # earlier failures shall not count
    process = unit.begin("start", unit.name)
    narrate = awaiting.Narrator(run, None)
    try:
        while process.poll() is None:
            narrate()
            time.sleep(awaiting.POLL)
    except KeyboardInterrupt:
        render.note(f"{unit.name} goes on starting: andrectl status, stop")
        raise
    _, told = process.communicate()
    said = list(events.read(run.events, events_from))
    stopped = awaiting.last(said, "stopped")
    if process.returncode == 0:
        found = awaiting.last(said, "started") or stopped
        return found or {"event": "stopped", "why": "it ended cleanly"}
    if stopped.get("exit_code"):
        raise DaemonEnded(
            f"the daemon did not train: {loose.text(stopped.get('why'))}",
            loose.text(stopped.get("hint")) or f"journalctl -u {unit.name}",
            loose.whole(stopped["exit_code"]),
        )
    found = unit.show()
    if (
        code := int(found.get("ExecMainStatus") or 0)
    ) in EXIT_CODES and code:  # before it had events
        why = found.get("StatusText") or told.strip()
        raise DaemonEnded(f"the daemon did not train: {why}", f"journalctl -u {unit.name}", code)
    raise unit.fault(told)


def settled(unit: Unit) -> bool:
    """Tell whether the manager is done with stopping `unit`."""
    return unit.show().get("ActiveState") not in ("active", "activating", "deactivating")
