"""Whether and how a fork could be made: looked at before anything is touched.

A fork's settings are its parent's, changed in two places: what a pivot may change goes into a
policy that begins after the fork's step, as a pivot's would; what a pivot may not, but a run with
the same weights can be trained under, goes into the fork's own run.toml.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from andread.rundir import feasibility, files, manifest, policy, recovery, sharing
from andread.rundir.companion import Companion
from andread.rundir.drift import refuse_drift
from andread.rundir.errors import (
    AccessError,
    ConfigError,
    DataError,
    ExistsError,
    MissingError,
    StorageError,
    UsageError,
    from_os_error,
)
from andread.rundir.layout import RunDirectory
from andread.rundir.manifest import SPLITS
from andread.rundir.overrides import OVERRIDABLE, settings_under
from andread.rundir.policy import Policy
from andread.rundir.recovery import Rejected
from andread.rundir.run_toml import read_settings, settings_from
from andread.rundir.settings import (
    AuditSettings,
    EngineSettings,
    FaultSettings,
    OptimizerSettings,
    RunSettings,
    Settings,
)
from andread.rundir.tables import nearest
from andrectl import change, render
from andrectl.change import SETTABLE, Change
from andrectl.rewriting import with_values

_SECTIONS: Final = {
    "run": RunSettings,
    "optimizer": OptimizerSettings,
    "engine": EngineSettings,
    "audit": AuditSettings,
    "faults": FaultSettings,
}
_STREAM: Final = "run.data_seed"
REWRITABLE: Final = tuple(
    key
    for section, cls in _SECTIONS.items()
    for key in (f"{section}.{each.name}" for each in dataclasses.fields(cls))
    if key not in (*OVERRIDABLE, "run.seed", _STREAM)
)
"""The keys of `--set` that go into the fork's run.toml."""

_MARGIN: Final = 1 << 20
"""Bytes for what is small: history aside, all a fork writes of its own."""


@dataclass(frozen=True)
class Plan:
    """A fork that could be made."""

    run: RunDirectory
    into: Path
    companion: Companion
    """Of the checkpoint that it begins from, as the parent has it; found valid."""
    skipped: tuple[Rejected, ...]
    """Newer checkpoints that are not valid."""
    settings: Settings
    toml: str
    policies: list[Policy]
    changes: list[dict[str, Any]]
    shared: tuple[Path, ...]
    """The large files, relative to the run directory."""
    copied_bytes: int
    """What of them is on another file system than the fork will be."""

    @property
    def step(self) -> int:
        """Return the fork's step."""
        return self.companion.step

    @property
    def policy(self) -> Policy:
        """Return the policy of the fork's first own step."""
        return policy.policy_at(self.policies, self.step + 1)


def plan(run: RunDirectory, into: Path, at: int | None, given: Change, stream: int | None) -> Plan:
    """Return the plan of a fork of `run`, at its newest valid checkpoint where `at` is None.

    Touches nothing. Raises `AndreadError` for whatever speaks against it.
    """
    into = _place(run, into)
    text, settings = _settings(run)
    split = _split(given.values)
    rewritten = dict(split[1])
    if stream is not None:
        if stream == settings.run.draw_seed:
            raise UsageError(
                f"the run draws its data by seed {stream} already",
                "choose another --seed-stream; without it the draws are the parent's",
            )
        rewritten[_STREAM] = stream
    text = with_values(text, rewritten)
    changed = settings_from(tomllib.loads(text))
    found, skipped = _checkpoint(run, at)
    names = settings.source_names()
    data = {name: manifest.read_manifest(run.manifest(name)).fingerprint for name in names}
    refuse_drift(settings, data, found)
    given = dataclasses.replace(given, values=split[0])
    policies, changes = _policies(run, found.step, changed, given)
    changes = change.settings_differences(settings, changed) + changes
    shared = tuple(
        path.relative_to(run.path)
        for path in (
            run.checkpoint(found.step),
            *(run.tokens(name, split) for name in names for split in SPLITS),
        )
    )
    copied = _refuse_space(run, into, shared, found)
    return Plan(run, into, found, skipped, changed, text, policies, changes, shared, copied)


def _place(run: RunDirectory, into: Path) -> Path:
    """Return where the fork will be, absolute; refuse a place that is taken or not there."""
    into = into.expanduser().absolute()
    if os.path.lexists(into):
        raise ExistsError(f"{into} is there already", "choose another directory for the fork")
    if not into.parent.is_dir():
        raise MissingError(f"{into.parent} is not a directory", "make it first, or check the path")
    into = into.parent.resolve() / into.name
    if into.is_relative_to(run.path.resolve()):
        raise UsageError(
            f"{into} lies within the run that is forked",
            "choose a place outside: a fork outlives its parent",
        )
    for path in (into.parent, run.path):
        if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
            raise AccessError(
                f"{path} may not be written to by the run's owner (user id {os.geteuid()}); a fork "
                "is made beside its place, and recorded in its parent",
                "choose another place, or ask as the run's owner",
            )
    return into


def _settings(run: RunDirectory) -> tuple[str, Settings]:
    """Return run.toml as text and as settings."""
    settings = read_settings(run.settings)
    try:
        return files.read_bytes(run.settings.resolve(), 4 << 20).decode(), settings
    except OSError as error:
        raise from_os_error(error, f"reading {run.settings}") from error


def _split(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part the values of `--set` into those of a policy and those of run.toml."""
    for key in values:
        if key in ("run.seed", _STREAM):
            raise ConfigError(
                f"{key} may not change in a fork", "--seed-stream gives it other draws of the data"
            )
        if key not in (*SETTABLE, *REWRITABLE):
            known = (*SETTABLE, *REWRITABLE)
            raise ConfigError(
                f"{key} may not change in a fork{nearest(key, known)}",
                f"a fork may set {', '.join(known)}; model, tokens and sources stay",
            )
    ours = {key: value for key, value in values.items() if key in SETTABLE}
    return ours, {key: value for key, value in values.items() if key not in SETTABLE}


def _checkpoint(run: RunDirectory, at: int | None) -> tuple[Companion, tuple[Rejected, ...]]:
    """Return the companion of the valid checkpoint to fork at, and what was passed over."""
    if at is not None:
        return recovery.valid_at(run, at), ()
    newest = recovery.newest_companion(run)
    found = newest and recovery.newest_valid(run, newest.n_params, recovery.verified_reader)
    if found:
        return found.companion, found.rejected
    if run.checkpoint_steps():
        raise DataError(f"no checkpoint of {run.path} has a readable companion", "restore one")
    raise MissingError(
        f"{run.path} has no checkpoint to fork at", "andrectl start; the first is that of step 0"
    )


def _policies(
    run: RunDirectory, step: int, settings: Settings, given: Change
) -> tuple[list[Policy], list[dict[str, Any]]]:
    """Return the policies of a fork at `step`, and what differs in the last of them."""
    policies = policy.read_policies(run.policy)
    kept = [each for each in policies if each.begins_after < step] or policies[:1]
    base = kept[-1]
    if given == Change():
        settings_under(settings, base)
        feasibility.obeyed(base, settings.source_names(), step)
        return kept, []
    target = given.of(base, settings, step)
    changes = change.differences(base, target, settings)
    if not changes:
        raise UsageError(
            f"that is policy {base.id} as it is: nothing would change",
            "leave it out: a fork without changes is a null fork",
        )
    if step == base.begins_after:  # no step has run under it
        kept = kept[:-1]
    return [*kept, target], changes


def _refuse_space(run: RunDirectory, into: Path, shared: tuple[Path, ...], found: Companion) -> int:
    """Return the bytes that must be copied; raise `StorageError` if the disk cannot take them."""
    copied = 0
    for path in shared:
        try:
            if sharing.must_copy(run.path / path, into.parent):
                copied += (run.path / path).stat().st_size
        except OSError as error:
            raise from_os_error(error, f"looking at {path}") from error
    needed = copied + found.history_length + _MARGIN
    free = shutil.disk_usage(into.parent).free
    if needed > free:
        raise StorageError(
            f"the fork takes {render.size(needed)}, {into.parent} has {render.size(free)} left",
            "free some space there, or fork onto the run's file system, where files are linked",
        )
    return copied
