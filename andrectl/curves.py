"""What a picture of a run is drawn from: its history in buckets, its audits, its marks.

The history is streamed: whatever its length, a curve has at most so many points. A bucket keeps
the lowest, highest and mean value of its steps, so a spike of one step survives among 200,000.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from andread.rundir import events, history, policy
from andread.rundir.errors import AndreadError
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import Policy
from andread.rundir.run_toml import read_settings
from andrectl import loose

POINTS: Final = 1500
"""Buckets of a curve, at most."""

_KINDS: Final = {
    "pivot": "pivot",
    "fork": "fork",
    "forked": "fork",
    "started": "restart",
    "fault": "fault",
    "history_fault": "fault",
    "rejected": "fault",
    "diverged": "fault",
    "spike": "spike",
}
"""Events that a picture marks, and what it calls them."""
_DETAILS: Final = ("detail", "reason", "why", "policy", "name", "path", "parent")
"""What an event tells of itself, the first that it has: of a fork, where the other run is."""


@dataclass
class Curve:
    """One figure over the steps: a value a bucket, None where no step had one."""

    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)
    mean: list[float | None] = field(default_factory=list)


@dataclass(frozen=True)
class Mark:
    """Something that happened at a step."""

    step: int
    kind: str
    """pivot, fork, restart, fault, spike or skipped step."""
    detail: str


@dataclass(frozen=True)
class Bounds:
    """The floor and cap of a source from one step to another."""

    first: int
    last: int
    floor: float
    cap: float


@dataclass
class Curves:
    """One run, as it is drawn."""

    run: RunDirectory
    first: int = 0
    last: int = 0
    width: int = 1
    """Steps a bucket."""
    horizon: int = 0
    """Steps that the moving average of the loss looks back over."""
    steps: list[float] = field(default_factory=list)
    """The middle of each bucket."""
    ends: list[int] = field(default_factory=list)
    """The last step of each bucket."""
    loss: Curve = field(default_factory=Curve)
    average: list[float | None] = field(default_factory=list)
    """Moving average of the loss at the end of each bucket."""
    lr: Curve = field(default_factory=Curve)
    grad_norm: Curve = field(default_factory=Curve)
    share_steps: list[float] = field(default_factory=list)
    """The middle of each bucket of the shares; none straddles a change of policy."""
    shares: dict[str, list[float]] = field(default_factory=dict)
    """Share of the pulls that each source got in each of them."""
    validation: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Validation losses of the audits, by source; `mean` apart."""
    mean: list[tuple[int, float]] = field(default_factory=list)
    bounds: dict[str, list[Bounds]] = field(default_factory=dict)
    """For sources that have any: where their floors and caps lie."""
    marks: list[Mark] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return the name of the run: that of its directory."""
        return self.run.path.absolute().name


class _Shares:
    """The pulls of some steps, until they are many enough."""

    def __init__(self, made: Curves, width: int, ends: set[int]) -> None:
        self._made = made
        self._width = width
        self._ends = ends
        self._first = self._filled = 0
        self._pulls: dict[str, int] = {}

    def add(self, step: int, pulls: dict[str, int]) -> None:
        """Take in the pulls of one step; where the bucket is full, add it to the curves."""
        self._first = self._first or step
        self._filled += 1
        for name, count in pulls.items():
            self._pulls[name] = self._pulls.get(name, 0) + count
        if self._filled < self._width and step not in self._ends:
            return
        made, total = self._made, sum(self._pulls.values()) or 1
        made.share_steps.append((self._first + step) / 2)
        for name in self._pulls:
            made.shares.setdefault(name, [0.0] * (len(made.share_steps) - 1))
        for name, shares in made.shares.items():
            shares.append(self._pulls.get(name, 0) / total)
        self._first = self._filled = 0
        self._pulls = {}


class _Bucket:
    """The steps between two points."""

    def __init__(self) -> None:
        self.first = self.last = 0
        self.t: float | None = None
        self.values: dict[str, list[float]] = {}

    def add(self, step: int, entry: dict[str, Any]) -> None:
        """Take in one entry."""
        self.first, self.last = self.first or step, step
        self.t = entry.get("t", self.t)
        for key in ("loss", "lr", "grad_norm"):
            value = entry.get(key)
            if value is None:
                continue
            kept = self.values.get(key)
            if kept is None:
                self.values[key] = [value, value, value, 1]
                continue
            if value < kept[0]:
                kept[0] = value
            elif value > kept[1]:
                kept[1] = value
            kept[2] += value
            kept[3] += 1

    def figures(self, key: str) -> tuple[float | None, float | None, float | None]:
        """Return the lowest, the highest and the mean value of `key`."""
        if (kept := self.values.get(key)) is None:
            return None, None, None
        return kept[0], kept[1], kept[2] / kept[3]


def curves(
    run: RunDirectory, since: int = 1, until: int | None = None, horizon: int | None = None
) -> Curves:
    """Read the steps from `since` to `until` of `run` for a picture.

    `horizon` is that of the moving average, by default one in 400 of the steps, ten or more.
    """
    end = history.last_step(run.history)
    last = end if until is None else min(end, until)
    made = Curves(run, last=last)
    length = max(1, last - since + 1)
    made.width = -(-length // POINTS)
    made.horizon = horizon or max(10, length // 400)
    times = _read(made, since, last) if end else []
    _audits(made, since)
    _bounds(made)
    made.marks = sorted(
        [*made.marks, *_marks(made, since, times, (since > 1, last < end))],
        key=lambda mark: mark.step,
    )
    return made


def _read(made: Curves, since: int, last: int) -> list[float]:
    """Stream the history into buckets; return the time at the end of each."""
    times: list[float] = []
    average, weight, keep = 0.0, 0.0, 1 - 1 / made.horizon
    bucket, filled = _Bucket(), 0
    changes = {last, *(each.begins_after for each in _policies(made.run))}
    length = last - since + 1
    few = max(length // 150, min(10, length // 20))  # one step's pulls are few, and say little
    shares = _Shares(made, max(made.width, few), changes)
    for entry in history.read(made.run.history):
        step = entry.get("step")
        if not isinstance(step, int) or step < since:
            continue
        if step > last:
            break
        made.first = made.first or step
        bucket.add(step, entry)
        shares.add(step, entry.get("pulls", {}))
        if entry.get("skipped") == "nonfinite":  # a loss scaler's overflow is ordinary
            made.marks.append(Mark(step, "skipped step", "its loss was not finite"))
        if (loss := entry.get("loss")) is not None:
            average, weight = keep * average + loss * (1 - keep), keep * weight + 1 - keep
        filled += 1
        if filled == made.width or step == last:
            _close(made, bucket, average / weight if weight else None)
            times.append(bucket.t if bucket.t is not None else 0.0)
            bucket, filled = _Bucket(), 0
    return times


def _close(made: Curves, bucket: _Bucket, average: float | None) -> None:
    """Add a full bucket to the curves."""
    made.steps.append((bucket.first + bucket.last) / 2)
    made.ends.append(bucket.last)
    made.average.append(average)
    for key, curve in (("loss", made.loss), ("lr", made.lr), ("grad_norm", made.grad_norm)):
        for kept, value in zip(
            (curve.low, curve.high, curve.mean), bucket.figures(key), strict=True
        ):
            kept.append(value)


def _audits(made: Curves, since: int) -> None:
    """Take the validation losses from the events: the samples are recent ones alone."""
    found: dict[int, dict[str, Any]] = {}
    for event in events.read(made.run.events):
        step = event.get("step")
        if event["event"] == "audit" and isinstance(step, int) and since <= step <= made.last:
            found[step] = event  # a later one of the same step is of a replay
    for step, event in sorted(found.items()):
        for name, loss in loose.table(event.get("validation")).items():
            if (value := loose.number(loss)) is not None:
                made.validation.setdefault(name, []).append((step, value))
        if (value := loose.number(event.get("mean"))) is not None:
            made.mean.append((step, value))


def _bounds(made: Curves) -> None:
    """Take floors and caps from the policies, each over the steps that it was in force."""
    policies = _policies(made.run)
    ends = [each.begins_after for each in policies[1:]] + [made.last]
    for each, end in zip(policies, ends, strict=False):  # there may be none
        first, last = max(each.begins_after + 1, made.first), min(end, made.last)
        if first <= last:
            for name in sorted({*each.caps, *each.floors} & made.shares.keys()):
                made.bounds.setdefault(name, []).append(_bound(each, name, first, last))


def _policies(run: RunDirectory) -> list[Policy]:
    """Return the policies; none if they cannot be read, which keeps no picture from being drawn."""
    try:
        return policy.read_policies(run.policy)
    except AndreadError:
        return []


def _bound(each: Policy, name: str, first: int, last: int) -> Bounds:
    return Bounds(first, last, each.floors.get(name, 0.0), each.caps.get(name, 1.0))


def _marks(made: Curves, since: int, times: list[float], cut: tuple[bool, bool]) -> Iterator[Mark]:
    """Yield what happened; an event without a step has the one that was recorded about then.

    `cut` tells whether the run has steps before and after those that are drawn.
    """
    begun = False
    for event in events.read(made.run.events):
        kind = _KINDS.get(event["event"])
        if kind is None or event.get("replayed"):
            continue
        if event["event"] == "started" and not begun:
            begun = True  # the first start is the beginning, not a restart
            continue
        step = event.get("step")
        if not isinstance(step, int):
            if (
                not times
                or (cut[0] and event["t"] < times[0])
                or (cut[1] and event["t"] > times[-1])
            ):
                continue
            place = bisect.bisect_left(times, event["t"])
            step = made.ends[min(place, len(made.ends) - 1)]
        if since - 1 <= step <= made.last:
            detail = next((text for key in _DETAILS if (text := loose.text(event.get(key)))), "")
            yield Mark(step, kind, detail)


def order(found: list[Curves]) -> list[str]:
    """Return the sources of all runs: those of run.toml first, then what else was pulled."""
    names: dict[str, None] = {}
    for each in found:
        try:
            names |= dict.fromkeys(read_settings(each.run.settings).source_names())
        except (AndreadError, OSError):
            continue
    for each in found:
        names |= dict.fromkeys([*each.shares, *each.validation])
    return list(names)
