"""What several checks look at, each read once: the first check that needs it pays."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from andread.rundir import companion, events, lineage, lock, pivot, policy, presence, survey
from andread.rundir.companion import Companion
from andread.rundir.errors import AndreadError, DataError
from andread.rundir.layout import RunDirectory
from andread.rundir.lineage import Record
from andread.rundir.policy import Policy
from andread.rundir.presence import Presence
from andread.rundir.run_toml import read_settings
from andread.rundir.settings import Settings
from andread.rundir.survey import Survey

Table = dict[str, Any]


class Evidence:
    """A run directory as it is found; what cannot be read is None, and the check for it says so."""

    def __init__(self, run: RunDirectory, deep: bool) -> None:
        self.run = run
        self.deep = deep
        self.owner: Presence = self._owner()
        """What the lock's holder told before anything else was read: the rest is newer."""
        self.digests: dict[int, str] = {}
        """SHA-256 of the checkpoints that were read whole."""

    def _owner(self) -> Presence:
        try:
            return presence.read(self.run.lock)
        except (OSError, AndreadError):
            return Presence()

    @cached_property
    def running(self) -> bool:
        """Tell whether somebody holds the run."""
        try:
            return lock.holder(self.run.lock) is not None
        except (OSError, AndreadError):
            return False

    @cached_property
    def settings(self) -> Settings | None:
        """Return run.toml."""
        try:
            return read_settings(self.run.settings)
        except (OSError, AndreadError):
            return None

    @cached_property
    def policies(self) -> list[Policy] | None:
        """Return policy.json."""
        try:
            return policy.read_policies(self.run.policy)
        except AndreadError:
            return None

    @cached_property
    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint."""
        return self.run.checkpoint_steps()

    @cached_property
    def companions(self) -> dict[int, Companion]:
        """Return the companions that can be read and are of the step in their name."""
        return {step: found for step, found in self._companions[0].items() if found.step == step}

    @cached_property
    def unfit(self) -> dict[int, str]:
        """Return what is wrong with the other companions, by the step in their name."""
        found, unfit = self._companions
        other = {
            step: f"{self.run.companion(step).name} is the companion of step {each.step}"
            for step, each in found.items()
            if each.step != step
        }
        return {**unfit, **other}

    @cached_property
    def _companions(self) -> tuple[dict[int, Companion], dict[int, str]]:
        found: dict[int, Companion] = {}
        unfit: dict[int, str] = {}
        for step in self.steps:
            try:
                found[step] = companion.read(self.run.companion(step))
            except FileNotFoundError:
                if self.run.checkpoint(step).exists():  # else it was pruned: the .bin goes first
                    unfit[step] = f"{self.run.checkpoint(step).name} has no companion"
            except DataError as error:
                unfit[step] = error.message
        return found, unfit

    @property
    def newest(self) -> Companion | None:
        """Return the newest companion that can be read."""
        return self.companions[max(self.companions)] if self.companions else None

    @cached_property
    def archives(self) -> list[str]:
        """Return the names of the archives of pivots."""
        return pivot.archives(self.run)

    @cached_property
    def manifests(self) -> dict[str, Table]:
        """Return those of their manifests that can be read."""
        found = {}
        for name in self.archives:
            try:
                found[name] = pivot.read_manifest(self.run, name)
            except (OSError, DataError):
                continue
        return found

    @cached_property
    def lineage(self) -> dict[str, Record]:
        """Return the readable records of where the run comes from and of its forks, by name."""
        found = {}
        for path in (self.run.lineage, *lineage.forks(self.run)):
            try:
                record = lineage.read(path)
            except (OSError, DataError):
                continue
            if record is not None:
                found[str(path.relative_to(self.run.path))] = record
        return found

    @cached_property
    def survey(self) -> Survey | None:
        """Return what the whole history says; None if there is none."""
        lengths = {each.history_length for each in self.companions.values()}
        lengths |= {each.history_length for each in self.lineage.values()}
        for manifest in self.manifests.values():
            kept = manifest.get("history")
            length = kept.get("bytes") if isinstance(kept, dict) else None
            lengths |= {length} if isinstance(length, int) else set()
        try:
            return survey.survey(self.run.history, lengths, self.companions)
        except FileNotFoundError:
            return None

    @cached_property
    def events(self) -> list[Table]:
        """Return every readable event."""
        return list(events.read(self.run.events))

    @property
    def begun(self) -> bool:
        """Tell whether the run has a past."""
        return bool(self.steps or (self.survey and self.survey.entries))

    @property
    def last_step(self) -> int:
        """Return the last step lived through, by the history and the checkpoints."""
        recorded = self.survey.last if self.survey else 0
        return max(recorded, max(self.companions, default=0))
