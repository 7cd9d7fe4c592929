"""The machine and the unit, rather than the run: whether it can be trained here for a month.

`patient` is what is known of the run, `pace` what its steps and checkpoints cost; each other
module makes checks: `compute` torch, device and memory; `storage` the file system, tried in a
scratch directory beside the run; `limits` systemd, log-out rules and resource limits; `clocks`
time.
"""

from __future__ import annotations

from andread.rundir.errors import from_os_error
from andrectl import checks
from andrectl.checks import Check, Outcome
from andrectl.doctor import clocks, compute, limits, pace, storage
from andrectl.doctor.patient import Patient


def examine(patient: Patient, write: bool = True) -> list[Outcome]:
    """Perform every check; without `write` nothing is written beside the run."""
    found = checks.perform([Check("run", patient.look), *compute.checks(patient)])
    found += checks.perform([Check("file system", lambda: storage.look_at_mount(patient.place))])
    if write:
        try:
            with storage.scratch(patient.place) as place:
                found += checks.perform(storage.checks(patient, place))
        except OSError as error:
            told = checks.of_error(from_os_error(error, f"writing in {patient.place}"))
            found += checks.perform([Check("scratch", lambda: told)])
    found += checks.perform([Check("disk space", lambda: storage.look_at_space(patient))])
    found += checks.perform([*limits.checks(patient), *clocks.checks(patient)])
    return found + checks.perform([Check("cadence", lambda: pace.look_at_cadence(patient))])
