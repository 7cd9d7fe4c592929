"""What is known of the run that the machine is judged for; all of it may be missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from andread.rundir import checkpoint, lock, presence, recovery, run_toml
from andread.rundir.errors import AndreadError
from andread.rundir.layout import RunDirectory
from andread.rundir.overrides import settings_under
from andread.rundir.policy import read_policies
from andread.rundir.settings import Settings
from andrectl import checks, loose, systemd
from andrectl.checks import Outcome
from andrectl.doctor.pace import Pace, measured
from andrectl.loose import Reader
from andrectl.systemd import Unit


@dataclass
class Patient:
    """One run, or none: then the machine alone is judged."""

    place: Path
    """Where files are tried: the run directory, or where runs would be."""
    mtbf: float
    """Assumed seconds between two failures of the machine."""
    run: RunDirectory | None = None
    settings: Settings | None = None
    error: AndreadError | None = None
    """Why the settings cannot be read."""
    n_params: int = 0
    """0 where it is not known: a model of the user's own that has no checkpoint yet."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Of the newest checkpoint; see the companion."""
    newest: float = 0.0
    """When the newest checkpoint was written, by the wall clock."""
    pid: int | None = None
    """Who holds the run."""
    supervisor: dict[str, Any] = field(default_factory=dict)
    unit: Unit | None = None
    pace: Pace = field(default_factory=Pace)
    speed: float = 0.0
    """Bytes a second of a durable write, once measured."""

    @property
    def image(self) -> int:
        """Return the bytes of a checkpoint, 0 where that is not known."""
        return checkpoint.file_size(self.n_params) if self.n_params else 0

    @property
    def device(self) -> str:
        """Return the device that the run wants: cuda, cpu, or auto."""
        told = self.settings.engine.device if self.settings else "auto"
        return loose.text(self.environment.get("device")) or told

    @property
    def write(self) -> float | None:
        """Return the seconds that a checkpoint takes: measured, else by the disk's speed."""
        if self.pace.write is not None:
            return self.pace.write
        return self.image / self.speed if self.image and self.speed else None

    def look(self) -> Outcome:
        """Tell which run this is about."""
        if self.run is None:
            return checks.skipped("none is selected: the machine alone", "--run DIR judges a run")
        if self.error is not None:
            return checks.of_error(self.error)
        size = f", {self.n_params:,} parameters" if self.n_params else ""
        state = f"running as pid {self.pid}" if self.pid else "not running"
        return checks.ok(f"{self.run.path}{size}, {state}")


def meet(run: RunDirectory | None, place: Path, mtbf: float) -> Patient:
    """Return what is known of `run`; nothing that is damaged keeps the rest from being known."""
    patient = Patient(place, mtbf, run)
    if run is None:
        return patient
    reader = Reader()
    try:
        made = run_toml.read_settings(run.settings)
        policies = reader.attempt(run.policy, lambda: read_policies(run.policy))
        patient.settings = settings_under(made, policies[-1]) if policies else made
        patient.n_params = 0 if made.model.factory else made.model.n_params
    except AndreadError as error:
        patient.error = error
    past = reader.attempt(run.path, lambda: recovery.newest_companion(run))
    if past is not None:
        patient.n_params, patient.environment = past.n_params, past.environment
        patient.newest = past.t
    patient.pid = reader.attempt(run.lock, lambda: lock.holder(run.lock))
    patient.supervisor = presence.read(run.lock).supervisor
    patient.unit = reader.attempt(run.lock, lambda: systemd.unit_of(run))
    patient.pace = reader.attempt(run.history, lambda: measured(run)) or Pace()
    return patient
