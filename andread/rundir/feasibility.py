"""Whether a policy can be obeyed: the check that a pivot makes before it touches anything.

A share p of the pulls for each live arm, with floor ≤ p ≤ cap and a sum of 1, exists if and only
if no floor is above its cap, the floors sum to at most 1 and the caps to at least 1. That is
checked for each phase over the arms that are live in it.

A policy that is asked for must name live sources only (`check`). One that is in force may outlive
a source: what it says of that one is left out, and the rest must be able to do without (`obeyed`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from andread.rundir.errors import ConfigError
from andread.rundir.policy import Policy
from andread.rundir.tables import nearest

TOLERANCE: Final = 1e-12
"""What a sum of floors or caps may miss 1 by. Shares rounded to doubles miss it by some 1e-16,
shares rounded to six decimals by 1e-6: the first are meant to sum to 1, the second do not."""


def check(policy: Policy, sources: Sequence[str], step: int = 0) -> None:
    """Raise `ConfigError`, with the sums, unless `policy` can be obeyed with these live `sources`.

    Phases that the policy can no longer meet after `step` (a warm-up that is over) are not checked.
    """
    _check_names(policy, sources)
    _check_warmup(policy)
    _check_shares(policy, sources, step)


def obeyed(policy: Policy, sources: Sequence[str], step: int = 0) -> tuple[Policy, tuple[str, ...]]:
    """Return what is in force of `policy` with these live `sources`, and the names left out.

    Raises `ConfigError`, with the sums, unless that can be obeyed after `step`.
    """
    gone = tuple(sorted(policy.named() - set(sources)))
    left = policy.without(gone)
    try:
        _check_names(left, sources)
        if not gone:
            _check_warmup(left)
        _check_shares(left, sources, step)
    except ConfigError as error:
        if not gone:
            raise
        raise ConfigError(
            f"the policy names {', '.join(gone)}, no longer a source, and without it: "
            f"{error.message}",
            "put the source back into run.toml, or pivot to a policy that the others can meet",
        ) from None
    return left, gone


def _check_shares(policy: Policy, sources: Sequence[str], step: int) -> None:
    """Check caps and floors one by one, and their sums in each phase that begins after `step`."""
    for table in ("caps", "floors"):
        for name, share in getattr(policy, table).items():
            if not 0 <= share <= 1:
                raise ConfigError(
                    f"the {table[:-1]} of {name} is {share:.12g}: a share is from 0 to 1",
                    "write 30 % as 0.3",
                )
    first = max(policy.begins_after, step) + 1
    if policy.warming(first):
        live = policy.live(first, sources)
        _check_phase(policy, live, "in the warm-up, ")
        _check_phase(policy, sources, "after the warm-up, ")
    else:
        _check_phase(policy, sources, "")


def check_shares(
    names: Sequence[str], floors: Sequence[float], caps: Sequence[float], where: str = ""
) -> None:
    """Raise `ConfigError` unless shares between `floors` and `caps` can sum to 1."""
    for name, floor, cap in zip(names, floors, caps, strict=True):
        if not 0 <= floor <= cap <= 1:
            raise ConfigError(
                f"{where}the floor of {name} ({floor:.12g}) and its cap ({cap:.12g}) leave no "
                f"share from 0 to 1 between them",
                "lower the floor or raise the cap",
            )
    if math.fsum(floors) - 1 > TOLERANCE:
        raise ConfigError(
            f"{where}the floors sum to {_sum(names, floors)}, more than 1",
            f"lower them by {math.fsum(floors) - 1:.6g} in all",
        )
    if 1 - math.fsum(caps) > TOLERANCE:
        raise ConfigError(
            f"{where}the caps sum to {_sum(names, caps)}, less than 1",
            f"raise them by {1 - math.fsum(caps):.6g} in all; a source without a cap has 1",
        )


def _check_phase(policy: Policy, live: Sequence[str], where: str) -> None:
    """Check the bounds, and that `fixed` has something to go by, over the arms of one phase."""
    floors = [policy.floors.get(name, 0.0) for name in live]
    caps = [policy.caps.get(name, 1.0) for name in live]
    check_shares(live, floors, caps, where)
    if policy.algorithm == "fixed" and not any(policy.weights[name] > 0 for name in live):
        raise ConfigError(
            f"{where}every weight is 0", "give at least one source a weight greater than 0"
        )


def _check_names(policy: Policy, sources: Sequence[str]) -> None:
    """Refuse a source that is not live, and weights that are missing, ignored or negative."""
    tables: Mapping[str, Iterable[str]] = {
        "caps": policy.caps,
        "floors": policy.floors,
        "weights": policy.weights,
        "the warm-up": policy.warmup.sources,
    }
    for where, names in tables.items():
        for name in names:
            if name not in sources:
                raise ConfigError(
                    f'{where}: unknown source "{name}"{nearest(name, sources)}',
                    f"live sources: {', '.join(sources)}",
                )
    if policy.algorithm != "fixed":
        if policy.weights:
            raise ConfigError(
                f"weights are given, but the algorithm {policy.algorithm} would ignore them",
                "leave them out, or choose fixed",
            )
        return
    missing = [name for name in sources if name not in policy.weights]
    if missing:
        raise ConfigError(
            f"the algorithm fixed needs a weight for {', '.join(missing)}",
            "a weight of 0 leaves a source out but for its floor",
        )
    for name, weight in policy.weights.items():
        if not 0 <= weight < math.inf:
            raise ConfigError(
                f"the weight of {name} is {weight:.12g}", "a weight is finite and 0 or more"
            )


def _check_warmup(policy: Policy) -> None:
    """Refuse a warm-up with steps and no sources, or the reverse."""
    if bool(policy.warmup.steps) != bool(policy.warmup.sources):
        raise ConfigError(
            f"the warm-up has {policy.warmup.steps} steps and {len(policy.warmup.sources)} sources",
            "give it both, or neither",
        )


def _sum(names: Sequence[str], shares: Sequence[float]) -> str:
    """Write a sum with its terms, as `1.2 (code 0.7 + web 0.5)`; those of 0 are left out."""
    terms = [f"{name} {share:.12g}" for name, share in zip(names, shares, strict=True) if share]
    if len(terms) > 20:
        terms[20:] = [f"{len(terms) - 20} more"]
    return f"{math.fsum(shares):.12g}" + (f" ({' + '.join(terms)})" if len(terms) > 1 else "")
