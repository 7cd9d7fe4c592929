"""The systemd journal, where stderr goes there: whole records instead of lines.

    MESSAGE         the line that a terminal would show
    PRIORITY        warning for what needs an eye, else info
    ANDREAD_RUN     the name of the run directory
    ANDREAD_EVENT   what happened: step, checkpoint, audit, replay, fault …
    ANDREAD_STEP    the step it is about, where it is about one

So `journalctl ANDREAD_RUN=web ANDREAD_EVENT=checkpoint` is a list of checkpoints.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

INFO: Final = 6
WARNING: Final = 4


def connected() -> bool:
    """Tell whether stderr is the journal and its library is installed."""
    try:
        stat = os.fstat(sys.stderr.fileno())
        if os.environ.get("JOURNAL_STREAM") != f"{stat.st_dev}:{stat.st_ino}":
            return False
        from systemd import journal  # noqa: F401
    except (ImportError, OSError, ValueError):
        return False
    return True


def send(run: str, event: str, fields: dict[str, Any], message: str, loud: bool) -> None:
    """Write one record about the run named `run`; call it only if `connected`."""
    from systemd import journal

    step = {"ANDREAD_STEP": str(fields["step"])} if "step" in fields else {}
    journal.send(
        message,
        PRIORITY=WARNING if loud else INFO,
        SYSLOG_IDENTIFIER="andread",
        ANDREAD_RUN=run,
        ANDREAD_EVENT=event,
        **step,
    )
