"""Runs against the first of them, paired by step from where they parted.

A difference is the other run minus the first: above 0 the other has the higher loss and is behind.
It is judged over the later half of the steps that both have run, for the earlier one holds the
parting itself. Training losses of different mixes of sources are not comparable: there the
validation losses judge, which every audit measures on the same text.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from andread.rundir import companion, events, manifest, policy, run_toml
from andread.rundir.errors import MissingError, UsageError
from andread.rundir.layout import RunDirectory
from andrectl import change, family, loose
from andrectl.loose import Reader, Table
from andrectl.pairing import Pairs, pairs
from andrectl.significance import Estimate, estimate

ALIKE: Final = 0.02
"""Shares of the pulls that differ by less than this and four standard deviations of their draws,
source by source, are the same mix."""


CHANCE: Final = 0.004
"""The standard deviation of the training loss between two runs that differ by chance alone, as a
share of the loss: what pairs of null forks were apart after 1,000 steps and more."""
TOKEN: Final = 0.5
"""That of the loss of one token, in nats: a validation loss over n tokens has this over √n more."""


@dataclass(frozen=True)
class Judging:
    """What a comparison is judged by."""

    confidence: float = 0.95
    last: int | None = None
    """The latest steps to judge by; None: the later half."""
    chance: float | None = None
    """In nats; None: by `CHANCE` and `TOKEN`."""

    def training(self, means: Sequence[float | None]) -> float:
        """Return the chance to allow for in training losses of these means."""
        if self.chance is not None:
            return self.chance
        return CHANCE * statistics.fmean([mean for mean in means if mean is not None] or [0.0])

    def validation(self, means: Sequence[float], tokens: int) -> float:
        """Return the chance to allow for in validation losses of these means over `tokens`."""
        if self.chance is not None:
            return self.chance
        return math.hypot(CHANCE * statistics.fmean(means), TOKEN / math.sqrt(max(1, tokens)))


def comparison(runs: Sequence[RunDirectory], by: Judging | None = None) -> Table:
    """Return the comparison of each of `runs` with the first."""
    by = by or Judging()
    reader = Reader()
    first, others = runs[0], runs[1:]
    return {
        "first": str(first.path),
        "confidence": by.confidence,
        "others": [_against(first, other, by, reader) for other in others],
        "damaged": reader.damaged,
    }


def _against(first: RunDirectory, other: RunDirectory, by: Judging, reader: Reader) -> Table:
    """Return `other` compared with `first`."""
    for run in (first, other):
        if not run.history.exists():
            raise MissingError(f"{run.path} has no loss history yet", "andrectl start")
    if first.path.resolve() == other.path.resolve():
        raise UsageError(f"{other.path} is the same run as the first", "name two runs")
    found = pairs(first.history, other.history)
    since = found.parting.step
    mixes = [_shares(pulls) for pulls in found.pulls]
    training = _training(found, by)
    validation = _validation(first, other, found, by, reader)
    speeds = [_speed(found.seconds[side]) for side in (0, 1)]
    answer: Table = {
        "run": str(other.path),
        "relation": _relation(first, other, reader),
        "parted_after": since,
        "upto": found.last,
        "steps": len(found.steps),
        "unpaired": found.unpaired,
        "training": training,
        "same_mix": _same_mix(found),
        "validation": validation,
        "shares": {
            name: [mixes[0].get(name, 0.0), mixes[1].get(name, 0.0)]
            for name in sorted(mixes[0] | mixes[1])
        },
        "steps_per_minute": speeds,
        "differences": _differences(first, other, max(found.last, since + 1), reader),
    }
    return answer | {"verdict": _verdict(answer, validation["same_text"])}


def _shares(pulls: Counter[str]) -> dict[str, float]:
    total = pulls.total()
    return {name: count / total for name, count in pulls.items()} if total else {}


def _same_mix(found: Pairs) -> bool:
    """Tell whether both have drawn the sources alike, as far as their counts can tell."""
    one, other = found.pulls
    n, m = one.total(), other.total()
    if not n or not m:
        return n == m
    for name in one | other:
        share = (one[name] + other[name]) / (n + m)
        spread = math.sqrt(share * (1 - share) * (1 / n + 1 / m))
        if abs(one[name] / n - other[name] / m) > ALIKE + 4 * spread:
            return False
    return True


def _speed(seconds: Sequence[float]) -> float | None:
    """Return the median rate in steps a minute."""
    middle = statistics.median(seconds) if seconds else 0.0
    return 60 / middle if middle > 0 else None


def _training(found: Pairs, by: Judging) -> Table:
    """Return the training losses and their differences, over all steps and those judged by."""
    one, other = found.losses
    differences = [b - a for a, b in zip(one, other, strict=True)]
    count = len(differences)
    judged = min(count, by.last if by.last is not None else (count + 1) // 2)
    means = [_mean(losses[count - judged :]) for losses in found.losses]
    chance = by.training(means)
    return {
        "identical": bool(differences) and not any(differences),
        "judged_steps": judged,
        "from": found.steps[count - judged] if judged else None,
        "means": means,
        "difference": _mean(differences[count - judged :]),
        "estimate": _table(estimate(differences[count - judged :], by.confidence, chance)),
        "all": _table(estimate(differences, by.confidence, chance)),
    }


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if len(values) else None


def _table(told: Estimate | None) -> Table | None:
    if told is None:
        return None
    keys = ("mean", "low", "high", "values", "effective", "chance", "differs")
    return {key: getattr(told, key) for key in keys}


def _audits(run: RunDirectory, since: int, upto: int, reader: Reader) -> dict[int, Table]:
    """Return the validation losses of each audit of `run` behind the parting, by step."""

    def read() -> dict[int, Table]:
        found = {}
        for event in events.read(run.events):
            if event["event"] == "audit" and since < loose.whole(event.get("step")) <= upto:
                losses = loose.table(event.get("validation"))
                found[loose.whole(event.get("step"))] = losses | {"": event.get("mean")}
        return found

    return reader.attempt(run.events, read) or {}


def _validation(
    first: RunDirectory, other: RunDirectory, found: Pairs, by: Judging, reader: Reader
) -> Table:
    """Return the validation losses of steps that both have audited: their mean, and by source."""
    audits = [_audits(run, found.parting.step, found.last, reader) for run in (first, other)]
    steps = sorted(audits[0].keys() & audits[1].keys())
    names = sorted({name for step in steps for side in audits for name in side[step]})
    tokens = _tokens(first, reader)
    rows = {}
    for name in names:
        both = [
            (a, b)
            for step in steps
            if (a := loose.number(audits[0][step].get(name))) is not None
            and (b := loose.number(audits[1][step].get(name))) is not None
        ]
        if not both:
            continue
        judged = both[len(both) // 2 :]
        differences = [b - a for a, b in judged]
        means = [statistics.fmean(side) for side in zip(*judged, strict=True)]
        chance = by.validation(means, tokens * (1 if name else len(names) - 1))
        rows[name] = {
            "last": list(both[-1]),
            "means": means,
            "audits": len(judged),
            "difference": statistics.fmean(differences),
            "estimate": _table(estimate(differences, by.confidence, chance)),
        }
    return {
        "step": steps[-1] if steps else None,
        "audits": len(steps),
        "same_text": _same_text(first, other, reader),
        "mean": rows.pop("", None),
        "sources": rows,
    }


def _tokens(run: RunDirectory, reader: Reader) -> int:
    """Return how many tokens of a source an audit of `run` measures at most."""
    made = reader.attempt(run.settings, lambda: run_toml.read_settings(run.settings))
    return made.audit.validation_windows * made.model.context if made else 1


def _same_text(first: RunDirectory, other: RunDirectory, reader: Reader) -> bool:
    """Tell whether both audits measure the same windows of the same text."""

    def measured(run: RunDirectory) -> list[Any]:
        made = run_toml.read_settings(run.settings)
        names = sorted(made.source_names())
        text = [manifest.read_manifest(run.manifest(name)).validation_sha256 for name in names]
        windows = made.audit.validation_windows
        return [made.run.seed, windows, made.model.context, names, text]

    found = [
        reader.attempt(run.settings, lambda r=run: measured(r))  # type: ignore[misc]
        for run in (first, other)
    ]
    return found[0] is not None and found[0] == found[1]


def _relation(first: RunDirectory, other: RunDirectory, reader: Reader) -> Table | None:
    """Return how two runs are related by their lineage: the nearest run that both come from."""
    lines = []
    for run in (first, other):
        line: dict[str, int | None] = {}
        leaves: int | None = None
        for member, record in family.ancestors(run, reader):
            line.setdefault(str(member.path), leaves)
            if record is not None:
                leaves = record.step if leaves is None else min(leaves, record.step)
                line.setdefault(record.parent, leaves)
        lines.append(line)
    for path, leaves in lines[0].items():
        if path in lines[1]:
            steps = [step for step in (leaves, lines[1][path]) if step is not None]
            return {"ancestor": path, "step": min(steps) if steps else None}
    return None


def _differences(
    first: RunDirectory, other: RunDirectory, step: int, reader: Reader
) -> dict[str, list[Table]]:
    """Return what differs between two runs, as far as it can be read."""
    made = [
        reader.attempt(run.settings, lambda r=run: run_toml.read_settings(r.settings))  # type: ignore[misc]
        for run in (first, other)
    ]
    listed = [
        reader.attempt(run.policy, lambda r=run: policy.read_policies(r.policy))  # type: ignore[misc]
        for run in (first, other)
    ]
    found: dict[str, list[Table]] = {"settings": [], "policy": [], "environment": []}
    if made[0] and made[1]:
        found["settings"] = change.settings_differences(made[0], made[1])
    if listed[0] and listed[1] and made[0]:
        now = [policy.policy_at(policies, max(1, step)) for policies in listed if policies]
        found["policy"] = change.differences(now[0], now[1], made[0])
    kept = [_environment(run, reader) for run in (first, other)]
    found["environment"] = [
        {"key": key, "old": kept[0].get(key), "new": kept[1].get(key)}
        for key in sorted(kept[0] | kept[1])
        if kept[0].get(key) != kept[1].get(key)
    ]
    return found


def _environment(run: RunDirectory, reader: Reader) -> dict[str, Any]:
    """Return what the newest checkpoint of `run` tells of its environment."""
    for step in reversed(reader.attempt(run.path, run.checkpoint_steps) or []):
        beside = run.companion(step)
        vouched = reader.attempt(beside, lambda p=beside: companion.read(p))  # type: ignore[misc]
        if vouched is not None:
            return vouched.environment
    return {}


def _verdict(answer: Table, same_text: bool) -> Table:
    """Return which of the two is ahead, by what, by how much, and whether that is noise."""
    training, mean = answer["training"], answer["validation"]["mean"]
    if training["identical"]:
        return {"ahead": None, "by": "training", "difference": 0.0, "why": "identical"}
    if answer["same_mix"]:
        by, difference, told = "training", training["difference"], training["estimate"]
    elif mean is not None and same_text:
        by, difference, told = "validation", mean["difference"], mean["estimate"]
    else:
        return {"ahead": None, "by": None, "difference": None, "why": "not comparable"}
    why = "too short" if told is None else "more than noise" if told["differs"] else "noise"
    ahead = None
    if why == "more than noise":
        ahead = "other" if difference < 0 else "first"
    return {"ahead": ahead, "by": by, "difference": difference, "why": why}
