"""Time: what ages, waits and the comparison of two machines rest on."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Final

from andread.rundir import clock
from andrectl import render
from andrectl.checks import Check, Outcome, failed, ok, skipped, warning

if TYPE_CHECKING:
    from andrectl.doctor.patient import Patient

_BORN: Final = 1_735_689_600.0
"""2025-01-01: a clock that shows less was never set."""
_SLACK: Final = 60.0


def checks(patient: Patient) -> list[Check]:
    """Return the checks of time."""
    return [
        Check("boot clock", look_at_boot_clock),
        Check("wall clock", lambda: look_at_wall_clock(patient, time.time())),
        Check("time server", look_at_synchronisation),
    ]


def look_at_boot_clock() -> Outcome:
    """See whether the clock of all ages and limits runs, and counts suspended time."""
    before = clock.boot_seconds()
    time.sleep(0.01)
    after = clock.boot_seconds()
    awake = time.clock_gettime(time.CLOCK_MONOTONIC)
    if not before < after or after < awake - 1 or not clock.boot_id():
        return failed(f"it went from {before} to {after}, of it awake {awake}", "reboot")
    slept = after - awake
    told = f", {render.duration(slept)} of it asleep" if slept > 1 else ""
    return ok(f"up for {render.duration(after)}{told}")


def look_at_wall_clock(patient: Patient, now: float) -> Outcome:
    """See whether the wall clock can be right: later than all that is dated."""
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    hint = "timedatectl set-ntp true; ages across a reboot are wrong until then"
    if now < _BORN:
        return warning(f"it shows {shown}: it was never set", hint)
    if patient.newest > now + _SLACK:
        ahead = render.duration(patient.newest - now)
        return warning(f"it shows {shown}: the newest checkpoint is {ahead} in the future", hint)
    return ok(shown)


def look_at_synchronisation() -> Outcome:
    """Ask timedatectl whether a time server is followed."""
    try:
        done = subprocess.run(
            ["timedatectl", "show"], capture_output=True, text=True, timeout=10, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return skipped("there is no timedatectl that could tell")
    told = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if "NTPSynchronized" not in told:
        return skipped("timedatectl does not tell")
    if told["NTPSynchronized"] == "yes":
        return ok("the wall clock is synchronised")
    return warning("the wall clock is not synchronised", "timedatectl set-ntp true")
