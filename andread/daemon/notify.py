"""sd_notify, where systemd listens and its library is installed; silence elsewhere."""

from __future__ import annotations

import os


def notify(*lines: str) -> bool:
    """Send `lines` such as `READY=1` to systemd; return whether anybody listens."""
    if not os.environ.get("NOTIFY_SOCKET"):
        return False
    try:
        from systemd import daemon
    except ImportError:
        return False
    return bool(daemon.notify("\n".join(lines)))
