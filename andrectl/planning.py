"""Whether and how a pivot could be made: looked at before anything is touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from andread.rundir import feasibility, history, lock, manifest, pivot, policy, presence, recovery
from andread.rundir.drift import refuse_drift
from andread.rundir.errors import AndreadError, BusyError, ConfigError, UsageError
from andread.rundir.layout import RunDirectory
from andread.rundir.overrides import settings_under
from andread.rundir.policy import Policy
from andread.rundir.presence import Presence
from andread.rundir.run_toml import read_settings
from andread.rundir.settings import Settings
from andrectl import boundary, render
from andrectl.change import Change, differences


@dataclass(frozen=True)
class Plan:
    """A pivot that is wanted. With `refusals` it will not be made."""

    settings: Settings
    base: Policy
    target: Policy | None
    """The new policy, as if it began after the last recorded step; None if there can be none."""
    running: bool
    owner: Presence
    step: int
    """The last recorded step."""
    at: str
    refusals: tuple[AndreadError, ...]

    @property
    def changes(self) -> list[dict[str, Any]]:
        """Return what differs between the policies."""
        return differences(self.base, self.target, self.settings) if self.target else []

    def lines(self) -> list[str]:
        """Return the six steps as they would go."""
        goal = boundary.next_step(self.at, self.step, self.settings)
        wait = ""
        if self.owner.steps_per_minute:
            seconds = (goal - self.step) / self.owner.steps_per_minute * 60
            wait = f", about {render.duration(seconds)} from now"
        one = f"have the daemon checkpoint and hold at {boundary.IN_WORDS[self.at]}"
        live = (f"{one} (step {goal:,}{wait})", "stop the daemon")
        still = ("nothing to wait for: the run is stopped", "take its lock")
        first, second = live if self.running else still
        return [
            f"1/6 {first}",
            f"2/6 {second}",
            "3/6 archive .samples.json, .state.json and policy.json",
            "4/6 check .loss.json, which stays where it is",
            "5/6 replace policy.json: the commit",
            "6/6 start the daemon, and prove that weights, m, v and history went through",
        ]


def plan(run: RunDirectory, change: Change, at: str) -> Plan:
    """Return the plan of a pivot of `run`, with every reason against it. Touches nothing."""
    settings = read_settings(run.settings)
    policies = policy.read_policies(run.policy)
    base = policies[-1]
    step = history.last_step(run.history)
    running = lock.holder(run.lock) is not None
    owner = presence.read(run.lock)
    refusals: list[AndreadError] = []
    for check in (_refuse_pending, _refuse_unbegun):
        try:
            check(run)
        except AndreadError as error:
            refusals.append(error)
    target = None
    try:
        _refuse_drift(run, settings)
        target = change.of(base, settings, max(step, base.begins_after))
    except AndreadError as error:
        refusals.append(error)
    if target is not None and not differences(base, target, settings):
        refusals.append(
            UsageError(
                f"that is policy {base.id} as it is: nothing would change",
                "andrectl status and policy.json show what is in force",
            )
        )
    if settings.run.steps <= base.begins_after:
        refusals.append(
            ConfigError(
                f"the run ends at step {settings.run.steps:,}, before policy {base.id} begins",
                "raise [run] steps and train under it first",
            )
        )
    return Plan(settings, base, target, running, owner, step, at, tuple(refusals))


def refuse_unlawful(run: RunDirectory, settings: Settings, target: Policy) -> None:
    """Raise `AndreadError` if the run could not go on under `target` with run.toml as it is now."""
    _refuse_drift(run, settings)
    settings_under(settings, target)
    feasibility.check(target, settings.source_names())


def _refuse_drift(run: RunDirectory, settings: Settings) -> None:
    """Refuse what the next start would refuse: a run.toml or tokens that have drifted."""
    past = recovery.newest_companion(run)
    if past is not None:
        names = settings.source_names()
        data = {name: manifest.read_manifest(run.manifest(name)).fingerprint for name in names}
        refuse_drift(settings, data, past)


def _refuse_pending(run: RunDirectory) -> None:
    """Raise `BusyError` if another pivot is in flight, or was left behind."""
    refuse_in_flight(run)
    if pivot.read(run) is not None:
        raise BusyError(
            "a pivot was begun and not ended",
            "andrectl pivot --resume goes on with it, andrectl pivot --abort gives it up",
        )


def refuse_in_flight(run: RunDirectory) -> None:
    """Raise `BusyError` if a pivot is in flight. Never call as the pivot: its lock would go."""
    if (pid := lock.holder(run.pivot_lock)) is not None:
        raise in_flight(pid)


def in_flight(pid: int | None) -> BusyError:
    """Return the error for a pivot that another andrectl is making."""
    who = f" (pid {pid})" if pid else ""
    return BusyError(
        f"another pivot is in flight{who}",
        "wait for it, then try again: andrectl status shows how far it is",
    )


def _refuse_unbegun(run: RunDirectory) -> None:
    """Raise `UsageError` for a run without a past."""
    if not run.checkpoint_steps():
        raise UsageError(
            "the run has not begun: there is no step to pivot at",
            "andrectl start; its first policy is the one in policy.json",
        )
