"""Runs that systemd owns: which unit trains a run, and what is asked of its manager.

A running run belongs to whom its daemon names in the lock's content. A stopped one belongs to the
unit of its place (`NAME` under the state directory is andread@NAME.service, `default` also
andread.service) where such a unit is installed, else to the unit that it last ran under.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from andread.rundir import lock, presence
from andread.rundir.errors import OS_FAULT, AccessError, AndreadError
from andread.rundir.layout import RunDirectory
from andrectl import loose, ownership, selection

_RUNNING: Final = Path("/run/systemd/system")
_LINGERING: Final = Path("/var/lib/systemd/linger")
_SHOWN: Final = (
    *("LoadState", "ActiveState", "SubState", "Result", "NRestarts", "WatchdogUSec"),
    *("UnitFileState", "StatusText", "ExecMainStatus"),
)
_INSTANCE: Final = re.compile(r"[A-Za-z0-9:_.][A-Za-z0-9:_.-]*")
"""What may be the instance of a unit as it stands; the units take it as the run's name."""
_ASK: Final = "sudo andrectl, or become the user whose manager it is"


class UnitFault(AndreadError):  # noqa: N818 - told as what systemctl said
    """systemctl refused, or could not be asked."""

    exit_code = OS_FAULT


@dataclass(frozen=True)
class Unit:
    """A service of the system's manager or of the user's own."""

    name: str
    manager: str
    """system or user."""

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Begin a systemctl command: as root for the system's manager, if this process may."""
        user = self.manager == "user"
        environment = dict(os.environ)
        if user:
            environment.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
        return subprocess.Popen(
            ["systemctl", "--no-ask-password", *(["--user"] if user else []), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=None if user else _as_root(),
        )

    def ask(self, *arguments: str) -> str:
        """Run a systemctl command to its end; return what it printed."""
        process = self.begin(*arguments)
        out, error = process.communicate()
        if process.returncode:
            raise self.fault(error)
        return out

    def fault(self, told: str) -> AndreadError:
        """Return what systemctl said as an error."""
        text = f"systemctl, about {self.name}: {told.strip() or 'it failed'}"
        if "authentication" in told or "denied" in told:
            return AccessError(text, _ASK)
        return UnitFault(text, f"systemctl status {self.name}; journalctl -u {self.name}")

    def show(self, names: Sequence[str] = _SHOWN) -> dict[str, str]:
        """Return these properties of the unit; none if they cannot be told."""
        try:
            out = self.ask("show", "-p", ",".join(names), self.name)
        except (AndreadError, OSError):
            return {}
        return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)

    def installed(self) -> bool:
        """Tell whether there is a file of this unit."""
        return self.show().get("LoadState") == "loaded"

    def mortal(self) -> bool:
        """Tell whether the manager, and the unit with it, ends when its user logs out."""
        return self.manager == "user" and not lingers()

    def table(self) -> dict[str, Any]:
        """Return what `status` tells of the unit."""
        found = self.show()
        return {
            "unit": self.name,
            "manager": self.manager,
            "active": found.get("ActiveState"),
            "sub": found.get("SubState"),
            "result": found.get("Result"),
            "enabled": found.get("UnitFileState"),
            "restarts": int(found.get("NRestarts") or 0),
            "watchdog": found.get("WatchdogUSec"),
        }


def running() -> bool:
    """Tell whether systemd runs this machine."""
    return _RUNNING.is_dir()


def lingers() -> bool:
    """Tell whether this user's manager outlives the user's sessions."""
    return (_LINGERING / user()).exists()


def user() -> str:
    """Return the name of this user; the number where there is no account, as in a container."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _as_root() -> Callable[[], None] | None:
    """Return what makes a child root again, where this process was; see `ownership`."""
    if os.geteuid() == 0 or not ownership.was_root():
        return None
    return lambda: os.setresuid(0, 0, 0)


def unit_of(run: RunDirectory) -> Unit | None:
    """Return the unit that trains `run`, or would; None if systemd has no part in it."""
    if not running():
        return None
    told = presence.read(run.lock).supervisor
    name, manager = loose.text(told.get("unit")), loose.text(told.get("manager"))
    last = Unit(name, manager) if told.get("kind") == "systemd" and name else None
    if lock.holder(run.lock) is not None:
        return last
    for unit in _of_its_place(run):
        if unit == last or unit.installed():
            return unit
    return last if last is not None and last.installed() else None


def _of_its_place(run: RunDirectory) -> list[Unit]:
    """Return the units that a run at this place may have."""
    path = run.path.resolve()
    if not _INSTANCE.fullmatch(path.name):
        return []
    if path.parent == selection.state_directory(os.environ, root=True):
        manager = "system"
    elif path.parent == selection.state_directory(os.environ, root=False):
        manager = "user"
    else:
        return []
    short = ["andread.service"] if path.name == "default" else []
    return [Unit(name, manager) for name in (*short, f"andread@{path.name}.service")]
