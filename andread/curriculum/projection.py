"""From weights to shares of the pulls within floors and caps.

The share of arm i is p_i = clip(λ·w_i, floor_i, cap_i), with the one λ for which Σp = 1. As a
function of λ the sum is piecewise linear and never falls; its breakpoints are floor_i/w_i and
cap_i/w_i. So the segment that reaches 1 is found among the sorted breakpoints, and λ follows from
the arms that are free in it: nothing is iterated to a tolerance, and equal inputs give equal bits.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import Final

from andread.rundir.feasibility import check_shares

LEAST_WEIGHT: Final = 1e-9
"""Weights are raised to at least this share of the largest, so that λ always exists."""


def project(
    weights: Sequence[float], floors: Sequence[float], caps: Sequence[float]
) -> list[float]:
    """Return shares that sum to 1 within 1e-12, each exactly within its floor and cap.

    Among the arms at neither bound shares are proportional to weights; only the ratios of the
    weights matter. Weights are finite and 0 or more (`ValueError`); all 0 means all equal.
    Raises `ConfigError` if no such shares exist.
    """
    if not all(0 <= weight < math.inf for weight in weights):
        raise ValueError(f"weights must be finite and 0 or more: {list(weights)}")
    check_shares([f"arm {place}" for place in range(len(weights))], floors, caps)
    if math.fsum(floors) >= 1:
        return list(floors)
    if math.fsum(caps) <= 1:
        return list(caps)
    largest = max(weights)
    scaled = [max(w / largest, LEAST_WEIGHT) if largest else 1.0 for w in weights]
    bounds = list(zip(scaled, floors, caps, strict=True))

    def shares(scale: float) -> list[float]:
        return [min(max(scale * weight, floor), cap) for weight, floor, cap in bounds]

    points = sorted({bound / weight for weight, *pair in bounds for bound in pair})
    above = bisect.bisect_left(points, 1.0, key=lambda point: math.fsum(shares(point)))
    if above == len(points):  # the caps sum to 1 but for rounding
        return list(caps)
    low, high = (points[above - 1] if above else 0.0), points[above]
    fixed, free = [], []
    for weight, floor, cap in bounds:
        if floor / weight >= high:
            fixed.append(floor)
        elif cap / weight <= low:
            fixed.append(cap)
        else:
            free.append(weight)
    if not free:  # the segment is flat but for rounding
        return shares(high)
    return shares((1.0 - math.fsum(fixed)) / math.fsum(free))
