"""What a pivot changes: from the words of a command line to the next policy, and the difference.

Given values change, the rest stays. Nothing here touches a run directory.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from andread.rundir.errors import ConfigError, MissingError, UsageError
from andread.rundir.feasibility import check
from andread.rundir.overrides import OVERRIDABLE, settings_under
from andread.rundir.policy import BanditSettings, Policy, Warmup, policy_from
from andread.rundir.settings import Settings
from andread.rundir.tables import nearest
from andrectl.draft import read_document

SETTABLE: Final = (
    *OVERRIDABLE,
    "max_epochs",
    *(f"warmup.{each.name}" for each in dataclasses.fields(Warmup)),
    *(f"bandit.{each.name}" for each in dataclasses.fields(BanditSettings)),
)
"""The keys of `--set`."""


@dataclass(frozen=True)
class Change:
    """What is given; what is not stays as it is."""

    caps: Mapping[str, float] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    algorithm: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values of `--set`, by key."""
    reset: bool = False
    """Whether caps, floors and weights start from none."""

    def of(self, base: Policy, settings: Settings, after: int) -> Policy:
        """Return the policy that follows `base` after step `after`.

        Raises `ConfigError` if there can be no such policy with the sources of `settings`.
        """
        algorithm = self.algorithm or base.algorithm
        live = settings.source_names()
        bounds = {}
        for name in ("caps", "floors", "weights"):
            kept = {} if self.reset else getattr(base, name)  # but for sources that are gone
            bounds[name] = {source: share for source, share in kept.items() if source in live}
            bounds[name] |= getattr(self, name)
        if algorithm != "fixed" and not self.weights:
            bounds["weights"] = {}
        first = [source for source in base.warmup.sources if source in live]
        table = base.content() | bounds | {"algorithm": algorithm, "begins_after": after}
        table["warmup"] = {**table["warmup"], "sources": first}
        if base.warmup.again:  # it goes on to where it would have ended
            table["warmup"] |= {"steps": base.warmup_end, "again": False}
        for key, value in self.values.items():
            _put(table, key, value)
        policy = policy_from(table, "the new policy")
        optimizer = settings_under(settings, policy).optimizer
        check(policy, live)
        given = settings.optimizer
        kept = {
            key: getattr(optimizer, name)
            for key in policy.overrides
            if getattr(given, name := key.partition(".")[2]) != getattr(optimizer, name)
        }
        return dataclasses.replace(
            policy,
            caps={name: cap for name, cap in policy.caps.items() if cap != 1},
            floors={name: floor for name, floor in policy.floors.items() if floor != 0},
            overrides=kept,
        )


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    """Put the value of `--set key=value` where it belongs in a policy's table."""
    if key not in SETTABLE:
        raise ConfigError(
            f"{key} may not change in mid-run{nearest(key, SETTABLE)}",
            f"a pivot may set {', '.join(SETTABLE)}; anything else takes a new run",
        )
    section, _, name = key.partition(".")
    if key in OVERRIDABLE:
        table["overrides"] = {**table["overrides"], key: value}
    elif name:
        table[section] = {**table[section], name: value}
    else:
        table[key] = value


def differences(old: Policy, new: Policy, settings: Settings) -> list[dict[str, Any]]:
    """Return what differs, as {"key", "old", "new"}; when they begin does not count.

    What a policy does not override is as `settings`, from run.toml, has it.
    """
    given = {key: settings.trajectory()[key] for key in (*old.overrides, *new.overrides)}
    before, after = given | _flat(old.content()), given | _flat(new.content())
    return [each for each in _differing(before, after) if each["key"] != "begins_after"]


def settings_differences(old: Settings, new: Settings) -> list[dict[str, Any]]:
    """Return what differs between two run.toml, as {"key", "old", "new"}."""
    return _differing(_settings(old), _settings(new))


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": key, "old": before.get(key), "new": after.get(key)}
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key)
    ]


def _settings(settings: Settings) -> dict[str, Any]:
    """Return all of run.toml as `section.key` to value; a source's keys are `source.NAME.key`."""
    table = dataclasses.asdict(settings)
    table["source"] = {source.pop("name"): source for source in table.pop("sources")}
    table["model"].pop("preset")  # its keys are there one by one
    return _flat(table)


def described(difference: Mapping[str, Any]) -> str:
    """Return one difference in words: `caps.code: none → 0.3`."""
    old, new = (_shown(difference.get(side)) for side in ("old", "new"))
    return f"{difference.get('key')}: {old} → {new}"


def shares(option: str, given: Sequence[str]) -> dict[str, float]:
    """Return the shares that `--option` gives: inline `a=0.3,b=0.5`, or a TOML or JSON file.

    A file holds them as one table, or under the option's name. Later ones win.
    """
    found: dict[str, float] = {}
    for text in given:
        table = _inline(option, text) if "=" in text else _from_file(option, Path(text))
        found |= table
    return found


def values(given: Sequence[str]) -> dict[str, Any]:
    """Return the values of `--set key=value`, read as TOML where that can be, else as text."""
    found: dict[str, Any] = {}
    for text in given:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value:
            raise UsageError(f"--set {text}: expected KEY=VALUE", "as in --set optimizer.lr=3e-4")
        try:
            found[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = value
    return found


def _inline(option: str, text: str) -> dict[str, float]:
    """Read `a=0.3,b=0.5`."""
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(
                f"--{option} {part}: expected SOURCE=SHARE", f"as in --{option} code=0.3,web=0.5"
            ) from None
    return found


def _from_file(option: str, path: Path) -> dict[str, float]:
    """Read a table of shares from a TOML or JSON file."""
    try:
        document = read_document(path.expanduser())
    except MissingError:
        raise MissingError(
            f"--{option} {path}: no such file", f"or write it out: --{option} code=0.3,web=0.5"
        ) from None
    table = document.get(option, document)
    if not isinstance(table, dict) or not all(
        isinstance(share, (int, float)) and not isinstance(share, bool) for share in table.values()
    ):
        raise ConfigError(
            f"{path} is not a table of shares",
            f"a line for each source, as in: code = 0.3; or a table [{option}] of such lines",
        )
    return {name: float(share) for name, share in table.items()}


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested table as `a.b` to value; overrides are by their own keys already."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, "" if key == "overrides" else f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, float):
        return f"{value:.12g}"
    return "none" if value is None else str(value)
