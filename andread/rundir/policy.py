"""policy.json: the list of policies of a run; what each step's curriculum was allowed to do.

Step k runs under the last policy with `begins_after < k`, in replay too. A pivot appends one; the
file is replaced whole. Each entry is the content of a policy and its id, the first twelve hex
digits of the SHA-256 of the content as canonical JSON. `begins_after` is part of the content, so
going back to an old policy makes a new one. Ids hold for good: a key that joins the format later
is declared `added`, and is not part of the content while it has its default.

    [{"id": "3f…", "begins_after": 0, "algorithm": "uniform", "caps": {"web": 0.5}, …}, …]
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from andread.rundir import files
from andread.rundir.errors import AndreadError, ConfigError, DataError, from_os_error
from andread.rundir.tables import (
    NOT_NEGATIVE,
    POSITIVE,
    Check,
    at_least,
    content_of,
    one_of,
    read_table,
    setting,
)

ALGORITHMS: Final = ("uniform", "proportional", "fixed", "ucb")
LIMIT: Final = 4 << 20
"""Bytes of a policy.json that we write or read at most."""

_RATE: Final[Check] = (lambda value: 0 < value <= 1, "above 0, at most 1")


@dataclass(frozen=True)
class BanditSettings:
    """How `ucb` turns losses into weights. The defaults were found in simulation."""

    slow: int = setting(200, check=at_least(2))
    """Pulls over which the slow moving average of a source's loss looks back."""
    fast: int = setting(50, check=at_least(1))
    """Pulls over which the fast one does; progress is slow minus fast."""
    clip: float = setting(3.0, check=POSITIVE)
    """A reward is at most this many standard errors."""
    discount: float = setting(0.97, check=_RATE)
    """What a past reward keeps of its weight from one step to the next."""
    exploration: float = setting(0.5, check=NOT_NEGATIVE)
    """Multiplies the upper confidence bound's bonus for arms seldom pulled."""
    temperature: float = setting(2.0, check=POSITIVE)
    """Scores are divided by this before the softmax. In simulation 1 gains half as much again as
    2 where there is something to gain, and loses nearly three times as much to late bloomers."""
    smoothing: float = setting(0.05, check=_RATE)
    """How far the weights move towards the softmax in one step; 1 follows it at once."""


@dataclass(frozen=True)
class Warmup:
    """A first phase on a subset of the sources."""

    steps: int = setting(0, check=NOT_NEGATIVE)
    """Steps that it lasts, counted from step 0; 0: there is no warm-up."""
    sources: tuple[str, ...] = setting(())
    """The sources that are pulled in it; the others wait, whatever their floors."""
    again: bool = setting(False)
    """Count from the policy's own beginning instead: a pivot that repeats the warm-up."""


@dataclass(frozen=True)
class Policy:
    """How a curriculum mixes its sources, from the step after `begins_after` on."""

    begins_after: int = setting(0, check=NOT_NEGATIVE)
    """The last step before this policy."""
    algorithm: str = setting("uniform", check=one_of(*ALGORITHMS))
    """uniform, proportional (to the windows of each source), fixed, or ucb (the bandit)."""
    weights: dict[str, float] = field(default_factory=dict)
    """For `fixed`: the weight of each source, on any scale."""
    caps: dict[str, float] = field(default_factory=dict)
    """The largest share of the pulls a source may get; 1 where none is named."""
    floors: dict[str, float] = field(default_factory=dict)
    """The smallest share of the pulls a source must get; 0 where none is named."""
    max_epochs: float = setting(0.0, check=NOT_NEGATIVE)
    """A source read more often than this many times over sinks to its floor; 0: never. In
    simulation 4 helps where the small source is not worth its repeats and costs six times as much
    where it is the one that teaches: a person must judge, so it is off."""
    warmup: Warmup = Warmup()
    """The first phase."""
    bandit: BanditSettings = BanditSettings()
    """For `ucb`."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Values of `--set`, `section.key` to value, over those of run.toml."""

    @property
    def id(self) -> str:
        """Return the first twelve hex digits of the SHA-256 of the content."""
        canonical = orjson.dumps(_canonical(self.content()), option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(canonical).hexdigest()[:12]

    def content(self) -> dict[str, Any]:
        """Return the policy as a table, without its id."""
        return content_of(self)

    def named(self) -> set[str]:
        """Return the sources that the policy says something of."""
        return {*self.caps, *self.floors, *self.weights, *self.warmup.sources}

    def without(self, gone: Collection[str]) -> Policy:
        """Return what is left of the policy when the sources `gone` are; another id, usually."""
        kept = tuple(name for name in self.warmup.sources if name not in gone)

        def left(table: Mapping[str, float]) -> dict[str, float]:
            return {name: value for name, value in table.items() if name not in gone}

        return dataclasses.replace(
            self,
            caps=left(self.caps),
            floors=left(self.floors),
            weights=left(self.weights),
            warmup=dataclasses.replace(self.warmup, sources=kept),
        )

    def warming(self, step: int) -> bool:
        """Tell whether `step` belongs to the warm-up."""
        return step <= self.warmup_end

    @property
    def warmup_end(self) -> int:
        """Return the last step of the warm-up; 0 where there is none."""
        start = self.begins_after if self.warmup.again and self.warmup.steps else 0
        return start + self.warmup.steps

    def live(self, step: int, sources: Sequence[str]) -> tuple[str, ...]:
        """Return those of `sources` that may be pulled at `step`, in their order."""
        if not self.warming(step):
            return tuple(sources)
        return tuple(source for source in sources if source in self.warmup.sources)


FIRST: Final = Policy(algorithm="ucb")
"""What a new run begins with, unless told otherwise: in measurements never worse than `uniform`
beyond noise, and better among sources of which some are small or repeat themselves. A table that
names no algorithm means `uniform`, as ever."""


def _canonical(value: Any) -> Any:
    """Return `value` with whole floats as integers, so that a cap of 1 and one of 1.0 are one."""
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def policy_from(table: Mapping[str, Any], where: str = "policy") -> Policy:
    """Make a policy from a table without id; raise `ConfigError` for whatever is wrong in it."""
    table = dict(table)
    parts: dict[str, Any] = {}
    for name, cls in (("warmup", Warmup), ("bandit", BanditSettings)):
        part = table.pop(name, {})
        if not isinstance(part, dict):
            raise ConfigError(f"{where} {name} = {part!r}: expected a table", f"correct {where}")
        parts[name] = read_table(cls, part, f"{where} {name}")
    policy = dataclasses.replace(read_table(Policy, table, where), **parts)
    for name, value in policy.overrides.items():
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, (str, int, float, bool)) for item in items):
            raise ConfigError(
                f"{where} overrides {name} = {value!r}: expected a plain value or a list of them",
                f"correct {where}",
            )
    return policy


def read_policies(path: Path) -> list[Policy]:
    """Read policy.json at `path`; an empty list is damage.

    Raises `MissingError` if it is not there, and `DataError` for damage: what is not such a list,
    an id that does not match its content, a `begins_after` not above the one before.
    """
    try:
        tables = files.read_json(path, LIMIT)
    except OSError as error:
        raise from_os_error(error, f"reading {path}") from error
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise _damaged(path, "it is not a list of policies")
    policies = []
    for place, table in enumerate(tables):
        recorded = table.pop("id", None)
        try:
            policy = policy_from(table)
        except AndreadError as error:
            raise _damaged(path, f"policy {place}: {error.message}") from None
        if recorded != policy.id:
            raise _damaged(path, f"policy {place} has id {recorded!r}, its content {policy.id}")
        policies.append(policy)
    _check_order(path, policies)
    return policies


def write_policies(path: Path, policies: Sequence[Policy]) -> None:
    """Put `policies` under the name `path`, atomically and durably. This is a pivot's commit.

    Raises `DataError` for a list that `read_policies` would refuse, `OSError` if writing fails.
    """
    _check_order(path, policies)
    tables = [{"id": policy.id, **policy.content()} for policy in policies]
    if len(orjson.dumps(tables, option=orjson.OPT_INDENT_2)) >= LIMIT:
        raise DataError(
            f"{path} would pass {LIMIT:,} bytes",
            "import its checkpoint into a new run to start a new list",
        )
    files.replace_json(path, tables)


def policy_at(policies: Sequence[Policy], step: int) -> Policy:
    """Return the policy that `step` runs under: the last with `begins_after < step`."""
    for policy in reversed(policies):
        if policy.begins_after < step:
            return policy
    raise DataError(f"no policy begins before step {step}", "policy.json is not this run's")


def _check_order(path: Path, policies: Sequence[Policy]) -> None:
    """Raise `DataError` unless there are policies and `begins_after` strictly rises."""
    if not policies:
        raise _damaged(path, "it has no policy")
    for before, after in itertools.pairwise(policies):
        if after.begins_after <= before.begins_after:
            raise _damaged(
                path,
                f"a policy that begins after step {after.begins_after} follows one that begins "
                f"after step {before.begins_after}",
            )


def _damaged(path: Path, what: str) -> DataError:
    return DataError(f"{path}: {what}", "do not edit it: restore it from the archive of a pivot")
