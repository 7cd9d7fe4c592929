"""Who started this process, for whoever wants to stop it and start it again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

_CGROUP: Final = Path("/proc/self/cgroup")


def supervisor() -> dict[str, Any]:
    """Return the `supervisor` of the run's presence.

    `kind` is foreground, detached (with `arguments`), or systemd (with `unit` and `manager`).
    """
    if os.environ.get("ANDREAD_SUPERVISOR") == "detached":
        return {"kind": "detached", "arguments": sys.orig_argv}
    if os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()):
        try:
            unit, manager = service_of(_CGROUP.read_text(encoding="utf-8"))
        except OSError:
            unit, manager = "", ""
        if unit:
            return {"kind": "systemd", "unit": unit, "manager": manager}
    return {"kind": "foreground"}


def service_of(cgroups: str) -> tuple[str, str]:
    """Return (unit, manager) from the content of a /proc/PID/cgroup; empty if it is no service's.

    `manager` is `user` below a user's manager, else `system`. The unified hierarchy has the line
    `0::PATH`, a legacy one `N:name=systemd:PATH`.
    """
    for line in cgroups.splitlines():
        number, controllers, path = line.split(":", 2)
        if number != "0" and controllers != "name=systemd":
            continue
        services = [part for part in path.split("/") if part.endswith(".service")]
        if services and not services[-1].startswith("user@"):
            user = any(part.startswith("user@") for part in services)
            return services[-1], "user" if user else "system"
    return "", ""
