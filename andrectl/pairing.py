"""Two loss histories side by side: where they part, and their entries from there on.

A fork's history begins with a copy of its parent's, times included, so histories part where their
bytes do; two runs that were never one part before their first step. Both are read as streams.
"""

from __future__ import annotations

import itertools
import os
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from andread.rundir import files, history
from andread.rundir.history import CLOSING, OPENING, SEPARATOR
from andrectl import loose

_CHUNK: Final = 1 << 20
Entry = dict[str, Any]


@dataclass(frozen=True)
class Parting:
    """The last step that two histories have in common, and the bytes up to its entry's end."""

    step: int
    length: int


@dataclass
class Pairs:
    """The steps that both have run since they parted and that both have applied."""

    parting: Parting
    losses: tuple[array[float], array[float]] = field(
        default_factory=lambda: (array("d"), array("d"))
    )
    steps: array[int] = field(default_factory=lambda: array("q"))
    pulls: tuple[Counter[str], Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))
    seconds: tuple[array[float], array[float]] = field(
        default_factory=lambda: (array("d"), array("d"))
    )
    """Of wall time, from each step of a run to its next."""
    unpaired: int = 0
    """Steps left out because one of the two was not applied."""
    last: int = 0
    """The last step that both have recorded."""


def parting(one: Path, other: Path) -> Parting:
    """Return where the histories `one` and `other` part; a missing one is an `OSError`."""
    with files.opened(one) as a, files.opened(other) as b:
        same = _same_bytes(a, b)
        start = max(0, same - _CHUNK)
        head = os.pread(a, same - start, start)
        ends = (os.pread(descriptor, len(CLOSING), same) for descriptor in (a, b))
        whole = head.endswith(b"}") and all(end.startswith((SEPARATOR, CLOSING)) for end in ends)
    if head.endswith(CLOSING):
        head = head[: -len(CLOSING)]
    elif not whole:  # within an entry: back to the end of the one before
        head = head[: max(0, head.rfind(b"\n") + 1 - len(SEPARATOR))]
    entry = head[head.rfind(b"\n") + 1 :]
    if not entry.startswith(b"{"):
        return Parting(0, len(OPENING))
    return Parting(int(orjson.loads(entry)["step"]), start + len(head))


def _same_bytes(one: int, other: int) -> int:
    """Return how many bytes two open files have in common from the first on."""
    for start in itertools.count(0, _CHUNK):
        left, right = (os.pread(descriptor, _CHUNK, start) for descriptor in (one, other))
        if left == right and len(left) == _CHUNK:
            continue
        low, high = 0, min(len(left), len(right))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if left[:middle] == right[:middle] else (low, middle - 1)
        return start + low
    raise AssertionError("a count without end has ended")


def pairs(one: Path, other: Path) -> Pairs:
    """Return the paired steps of two histories since they parted."""
    found = Pairs(parting(one, other))
    sides = [_entries(path, found.parting) for path in (one, other)]
    before: list[Entry | None] = [None, None]
    for both in _matched(*sides):
        found.last = both[0]["step"]
        for side, entry in enumerate(both):
            found.pulls[side].update(entry.get("pulls") or {})
            past = before[side]
            if past is not None and past["step"] + 1 == entry["step"]:
                found.seconds[side].append(entry.get("t", 0.0) - past.get("t", 0.0))
            before[side] = entry
        losses = [loose.number(entry.get("loss")) for entry in both]
        if losses[0] is not None and losses[1] is not None:
            found.steps.append(found.last)
            found.losses[0].append(losses[0])
            found.losses[1].append(losses[1])
        else:
            found.unpaired += 1
    return found


def _entries(path: Path, since: Parting) -> Iterator[Entry]:
    """Yield the entries of `path` behind the parting."""
    if since.step:
        yield from history.read_after(path, since.length, since.step)
        return
    yield from itertools.filterfalse(lambda entry: "step" not in entry, history.read(path))


def _matched(one: Iterator[Entry], other: Iterator[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Yield the entries of equal steps; each side's steps rise."""
    a, b = next(one, None), next(other, None)
    while a is not None and b is not None:
        if a["step"] == b["step"]:
            yield a, b
            a, b = next(one, None), next(other, None)
        elif a["step"] < b["step"]:
            a = next(one, None)
        else:
            b = next(other, None)
