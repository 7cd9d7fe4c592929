"""Rows of a table of measurements, and timings that are taken in turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """What was measured, what came out, and what was aimed at."""

    what: str
    measured: str
    target: str = ""


Case = Callable[[], object]
"""Something to be timed; it may return a float instead: seconds that it took itself."""


def timed(act: Case) -> float:
    """Return the seconds that `act` took."""
    begun = time.perf_counter()
    told = act()
    return told if isinstance(told, float) else time.perf_counter() - begun


def in_turns(cases: Mapping[str, Case], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each case, one a round: what slows the machine slows them all."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, act in cases.items():
            found[name].append(timed(act))
    return found


def median(seconds: Iterable[float]) -> float:
    return statistics.median(seconds)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def ratio(above: list[float], below: list[float]) -> str:
    """Return the median of the paired ratios with their 95 % interval: Student's t of the logs."""
    logs = [math.log(a / b) for a, b in zip(above, below, strict=True)]
    half = _student(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    centre = statistics.fmean(logs)
    middle = math.exp(statistics.median(logs))
    return f"{middle:.3f} [{math.exp(centre - half):.3f}, {math.exp(centre + half):.3f}]"


def _student(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t."""
    from scipy import stats

    return float(stats.t.ppf(0.975, degrees))


def show(title: str, rows: Iterable[Row]) -> None:
    """Print `rows` as a table of Markdown."""
    print(f"\n## {title}\n\n| what | measured | target |\n|---|---|---|")
    for row in rows:
        print(f"| {row.what} | {row.measured} | {row.target} |", flush=True)
