"""What may end a run from outside: the unit's limits, its manager, log-out rules, resources.

A running run is judged by who runs it; a stopped one by who would start it.
"""

from __future__ import annotations

import importlib.util
import pwd
import re
import resource
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from andread.rundir import errors
from andrectl import loose, render, systemd
from andrectl.checks import Check, Outcome, failed, ok, skipped, warning
from andrectl.systemd import Unit

if TYPE_CHECKING:
    from andrectl.doctor.patient import Patient

OLDEST: Final = 252
"""The systemd that the units are written for."""
_ASKED: Final = (
    *("LoadState", "UnitFileState", "NeedDaemonReload", "User", "Type", "NotifyAccess"),
    *("KillMode", "TimeoutStopUSec", "RuntimeMaxUSec", "WatchdogUSec", "Restart", "RestartUSec"),
    *("RestartPreventExitStatus", "StartLimitIntervalUSec", "StartLimitBurst", "NRestarts"),
    *("LimitNOFILE", "LimitNOFILESoft", "LimitFSIZE", "LimitAS", "LimitMEMLOCK", "MemoryMax"),
)
_NEVER_MENDED: Final = (errors.DIVERGED, errors.LAST_WRITE_FAILED, errors.CONFIG)
_FILES: Final = 128
"""Files that a daemon has open besides its tokens, with room."""
_UNITS: Final = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
    "month": 2_629_800.0,
    "y": 31_557_600.0,
}


def seconds(told: str) -> float | None:
    """Return a duration as `systemctl show` prints it, 1min 30s; None for infinity."""
    if told in ("infinity", ""):
        return None
    parts = re.findall(r"([0-9.]+)([a-z]*)", told)
    return sum(float(number) * _UNITS.get(unit or "us", 0.0) for number, unit in parts)


def checks(patient: Patient) -> list[Check]:
    """Return the checks of what may end the run."""
    made = [Check("systemd", look_at_systemd)]
    if patient.unit is not None:
        service = Service(patient, patient.unit)
        return [
            *made,
            Check("unit", service.look_at_unit),
            Check("stop limit", service.look_at_stop),
            Check("watchdog", service.look_at_watchdog),
            Check("restarts", service.look_at_restarts),
            Check("resources", service.look_at_resources),
            Check("log-out", service.look_at_logout),
        ]
    return [
        *made,
        Check("resources", lambda: look_at_own_resources(patient)),
        Check("log-out", lambda: look_at_session(patient)),
    ]


def look_at_systemd() -> Outcome:
    """See whether systemd runs this machine, and whether the daemon can talk to it."""
    if not systemd.running():
        return skipped("it does not run this machine: andrectl start detaches a daemon instead")
    first = _output("systemctl", "--version").partition("\n")[0]
    version = loose.whole(int(found[1]) if (found := re.search(r"systemd (\d+)", first)) else 0)
    if version < OLDEST:
        return warning(
            f"{version} is older than {OLDEST}", "the units may not work: see journalctl"
        )
    if importlib.util.find_spec("systemd") is None:
        return warning(
            f"{version}; systemd-python is not installed: no readiness, status or watchdog",
            "install libsystemd-dev and reinstall andread",
        )
    return ok(f"{version}, with systemd-python")


class Service:
    """The unit of the run, as its manager has loaded it."""

    def __init__(self, patient: Patient, unit: Unit) -> None:
        self.patient = patient
        self.unit = unit
        self.shown = unit.show(_ASKED)
        user = "--user " if unit.manager == "user" else ""
        self.edit = f"systemctl {user}edit {unit.name}"

    def _seconds(self, name: str) -> float | None:
        return seconds(self.shown.get(name, ""))

    @property
    def notifies(self) -> bool:
        """Tell whether the daemon can ask for more time."""
        heard = self.shown.get("NotifyAccess") not in ("none", "", None)
        return heard and importlib.util.find_spec("systemd") is not None

    @property
    def stop(self) -> float | None:
        """Return the seconds that a stop has taken at its slowest, None before there are any."""
        slowest, write = self.patient.pace.slowest, self.patient.write
        return None if slowest is None else slowest + (write or 0.0)

    def look_at_unit(self) -> Outcome:
        """See whether the unit is the one on disk, starts at boot, and is of the run's owner."""
        name = f"{self.unit.name} of the {self.unit.manager}'s manager"
        if self.shown.get("LoadState") != "loaded":
            return warning(f"{name} cannot be shown", "ask as root, or as the user whose it is")
        if self.shown.get("NeedDaemonReload") == "yes":
            user = "--user " if self.unit.manager == "user" else ""
            return warning(f"{name} has changed on disk", f"systemctl {user}daemon-reload")
        if stranger := self._stranger():
            return failed(f"{name} {stranger}", "chown -R the run directory", errors.PERMISSION)
        if self.shown.get("UnitFileState") not in ("enabled", "enabled-runtime", "linked"):
            user = "--user " if self.unit.manager == "user" else ""
            return warning(
                f"{name} does not start at boot: after a power cut the run stays down",
                f"systemctl {user}enable {self.unit.name}",
            )
        return ok(f"{name}, starts at boot")

    def _stranger(self) -> str:
        """Tell whether the unit's user is not the run's owner."""
        assert self.patient.run is not None, "a unit is a run's"
        if self.unit.manager == "user":
            return ""
        user = self.shown.get("User") or "root"
        try:
            uid = pwd.getpwnam(user).pw_uid
        except KeyError:
            return f"runs as {user}, who does not exist"
        owner = self.patient.run.path.stat().st_uid
        return "" if uid in (owner, 0) else f"runs as {user}, and uid {owner} owns the run"

    def look_at_stop(self) -> Outcome:
        """Compare what a stop may take with what it takes."""
        limit, longest = self._seconds("TimeoutStopUSec"), self._seconds("RuntimeMaxUSec")
        mode = self.shown.get("KillMode")
        if longest is not None:
            said = f"RuntimeMaxSec ends the run after {render.duration(longest)}"
            return warning(said, f"{self.edit}: RuntimeMaxSec=infinity")
        if mode not in ("mixed", "process"):
            said = f"KillMode={mode} signals helper processes too"
            return warning(said, f"{self.edit}: KillMode=mixed")
        told = f"TimeoutStopSec {render.duration(limit) if limit else 'infinity'}"
        more = "the daemon asks for more" if self.notifies else "and the daemon cannot ask for more"
        if self.stop is None:
            return ok(f"{told}; no step is measured yet")
        took = f"a step, its checkpoint and audit take up to {render.duration(self.stop)}"
        if limit is None or limit > self.stop:
            return ok(f"{told}; {took}")
        hint = f"{self.edit}: TimeoutStopSec={max(180, round(4 * self.stop))}"
        if self.notifies:
            return warning(f"{told} is short, {took}; {more}, up to twice the slowest", hint)
        return failed(f"{told} is short, {took}, {more}: SIGKILL ends it", hint, errors.CONFIG)

    def look_at_watchdog(self) -> Outcome:
        """Compare the watchdog with the longest silence."""
        limit = self._seconds("WatchdogUSec")
        if not limit:
            return warning("none: a hung run hangs for ever", f"{self.edit}: WatchdogSec=10min")
        told = f"WatchdogSec {render.duration(limit)}"
        silence = max(self.patient.pace.slowest or 0.0, self.patient.write or 0.0)
        if not silence:
            return ok(f"{told}; no step is measured yet")
        took = f"the longest silence is up to {render.duration(silence)}"
        if limit < 2 * silence:
            hint = f"{self.edit}: WatchdogSec={max(600, round(10 * silence))}"
            return warning(f"{told} is short: {took}, and the first step is not measured", hint)
        return ok(f"{told}; {took}")

    def look_at_restarts(self) -> Outcome:
        """See whether a crash is followed by another start, and a lost cause is not."""
        how = self.shown.get("Restart", "no")
        prevented = set(
            map(int, re.findall(r"\b\d+\b", self.shown.get("RestartPreventExitStatus", "")))
        )
        burst = int(self.shown.get("StartLimitBurst") or 0)
        within = self._seconds("StartLimitIntervalUSec")
        often = f"{burst} starts in {render.duration(within)}"
        so_far = f"; {self.shown.get('NRestarts') or 0} so far"
        if how in ("no", "on-success"):
            said = f"Restart={how}: after a crash the run stays down"
            return warning(said, f"{self.edit}: Restart=on-failure")
        if how == "always" or not prevented.issuperset(_NEVER_MENDED):
            codes = " ".join(map(str, _NEVER_MENDED))
            said = f"Restart={how} starts it again after what no restart mends ({codes})"
            return warning(
                said, f"{self.edit}: Restart=on-failure, RestartPreventExitStatus={codes}"
            )
        if not burst or not within:
            said = "no limit: a run that crashes at every start does so for ever"
            return warning(said, f"{self.edit}: StartLimitIntervalSec=1h, StartLimitBurst=10")
        if burst < 3:
            said = f"{often}: two bad minutes end it"
            return warning(said, f"{self.edit}: StartLimitBurst=10")
        return ok(f"Restart={how} after {self.shown.get('RestartUSec')}, {often}{so_far}")

    def look_at_resources(self) -> Outcome:
        """Compare the unit's limits with what the run takes."""

        def limit(name: str) -> int | None:
            told = self.shown.get(name, "infinity")
            return int(told) if told.isdigit() and int(told) < 1 << 62 else None

        limits = {"LimitFSIZE": limit("LimitFSIZE"), "LimitAS": limit("LimitAS")}
        limits |= {"MemoryMax": limit("MemoryMax")}
        opened = limit("LimitNOFILESoft") or limit("LimitNOFILE")
        return judge_resources(self.patient, limits, opened, limit("LimitMEMLOCK"), self.edit)

    def look_at_logout(self) -> Outcome:
        """See whether the unit outlives its user's sessions."""
        if self.unit.manager == "system":
            return ok("the system's manager asks no session")
        if self.unit.mortal():
            said = f"{self.unit.name} ends with the last session of {systemd.user()}"
            return warning(said, "loginctl enable-linger")
        return ok("lingering is on: the user's manager outlives the sessions")


def look_at_own_resources(patient: Patient) -> Outcome:
    """Judge the limits of this shell, which a detached daemon inherits."""

    def soft(which: int) -> int | None:
        value = resource.getrlimit(which)[0]
        return None if value == resource.RLIM_INFINITY else value

    limits = {"ulimit -f": soft(resource.RLIMIT_FSIZE), "ulimit -v": soft(resource.RLIMIT_AS)}
    opened, locked = soft(resource.RLIMIT_NOFILE), soft(resource.RLIMIT_MEMLOCK)
    return judge_resources(patient, limits, opened, locked, "raise it before andrectl start")


def judge_resources(
    patient: Patient,
    limits: dict[str, int | None],
    opened: int | None,
    locked: int | None,
    how: str,
) -> Outcome:
    """Compare limits in bytes, open files and locked memory with what the run takes."""
    names = patient.settings.source_names() if patient.settings else ()
    wanted = _FILES + 2 * len(names)
    if opened is not None and opened < wanted:
        said = f"{opened} open files at most; about {wanted} are needed"
        return warning(said, how)
    for name, value in limits.items():
        least = patient.image if name in ("LimitFSIZE", "ulimit -f") else 28 * patient.n_params
        if value is not None and least and value < least:
            said = f"{name} is {render.size(value)}, and the run takes {render.size(least)}"
            return failed(said, how, errors.OS_FAULT)
    if patient.device == "cuda" and locked is not None and locked < patient.image:
        size = render.size(patient.image)
        said = f"{render.size(locked)} of locked memory at most; {size} are staged in pinned memory"
        return warning(said, f"{how}: LimitMEMLOCK=infinity, where the driver counts it")
    files = "any number of" if opened is None else f"{opened:,}"
    return ok(f"{files} open files; no other limit is below what the run takes")


def look_at_session(patient: Patient) -> Outcome:
    """See whether a daemon that no unit runs outlives the session that started it."""
    if not systemd.running():
        return ok("no systemd ends sessions here")
    pid = patient.pid if patient.supervisor.get("kind") == "detached" else None
    place = _cgroup(pid)
    who = systemd.user()
    if "/user@" in place and not systemd.lingers():
        said = f"a detached daemon ends with the manager of {who}, at the last log-out"
        return warning(said, "loginctl enable-linger, or a unit of the system")
    ends, excluded, only = _kill_rules()
    if ends is None:
        return skipped("logind does not tell whether it ends processes at log-out")
    if ends and who not in excluded and (not only or who in only):
        said = f"logind ends every process of {who} at log-out (KillUserProcesses=yes)"
        return warning(said, "use a unit: systemctl --user with lingering, or the system's")
    return ok(
        "a detached daemon outlives its session" + (" (lingering)" if systemd.lingers() else "")
    )


def _kill_rules() -> tuple[bool | None, list[str], list[str]]:
    """Return logind's KillUserProcesses, KillExcludeUsers and KillOnlyUsers."""
    told = [_logind(name) for name in ("KillUserProcesses", "KillExcludeUsers", "KillOnlyUsers")]
    users = [re.findall(r'"([^"]*)"', text) for text in told[1:]]
    return (told[0] == "b true" if told[0] else None), users[0], users[1]


def _logind(name: str) -> str:
    place = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
    return _output("busctl", "get-property", *place, name).strip()


def _cgroup(pid: int | None) -> str:
    """Return the cgroup path of `pid`, or of this process."""
    try:
        lines = Path(f"/proc/{pid or 'self'}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    paths = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    named = [path for number, kind, path in paths if number == "0" or kind == "name=systemd"]
    return max(named, key=len, default="")


def _output(*command: str) -> str:
    """Return what a command prints, nothing if it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
