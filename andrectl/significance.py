"""The mean of a series whose neighbours resemble each other, with an interval that knows so.

Differences of losses step by step are autocorrelated: taken as independent, 1,000 of them claim a
precision that they do not have. Two estimates of the mean's variance are made, and the larger one
counts:

- batch means: the series is cut into 10 to 20 stretches whose means are nearly independent;
- a first-order autoregression: s²/n × (1 + r)/(1 − r), r being the lag-one autocorrelation,
  corrected for its bias in short series (Kendall, 1954) and not below 0.

The interval is Student's, with one degree of freedom less than there are stretches. A trend widens
it. On simulated first-order series it covers the true mean as often as it says, or a little more
(tests hold that).

That is the noise within one pair of runs. Two runs that differ by nothing but chance come to lie
apart as well, and stay so, which no series of their differences can tell. `chance`, the standard
deviation of that, must be known from elsewhere; it is allowed for on top.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

MINIMUM: Final = 8
"""Fewer values than this are not judged."""
_MANY: Final = 400
_LARGEST_R: Final = 0.995


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval."""

    mean: float
    low: float
    high: float
    values: int
    effective: float
    """As many independent values would be as precise, but for chance."""
    chance: float
    """The standard deviation that was allowed for what chance does between two runs."""

    @property
    def differs(self) -> bool:
        """Tell whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def estimate(values: Sequence[float], confidence: float, chance: float = 0.0) -> Estimate | None:
    """Return the mean of `values` with its interval at `confidence`; None for too few values."""
    n = len(values)
    if n < MINIMUM:
        return None
    mean = math.fsum(values) / n
    batches = 20 if n >= _MANY else min(10, n)
    variance = math.fsum((x - mean) ** 2 for x in values) / (n - 1)
    squared = max(_by_batches(values, batches), _by_autoregression(values, mean, variance))
    half = student(batches - 1, (1 + confidence) / 2) * math.sqrt(squared + chance**2)
    effective = min(float(n), variance / squared) if squared > 0 else float(n)
    return Estimate(mean, mean - half, mean + half, n, effective, chance)


def _by_batches(values: Sequence[float], batches: int) -> float:
    """Return the variance of the mean, by the means of stretches; a first remainder is left out."""
    length = len(values) // batches
    first = len(values) - batches * length
    means = [
        math.fsum(values[start : start + length]) / length
        for start in range(first, len(values), length)
    ]
    middle = math.fsum(means) / batches
    return math.fsum((x - middle) ** 2 for x in means) / (batches - 1) / batches


def _by_autoregression(values: Sequence[float], mean: float, variance: float) -> float:
    """Return the variance of the mean of a first-order autoregression."""
    n = len(values)
    if variance == 0:
        return 0.0
    products = math.fsum((a - mean) * (b - mean) for a, b in itertools.pairwise(values))
    r = products / (variance * (n - 1))
    r = min(_LARGEST_R, max(0.0, r + (1 + 3 * r) / n))
    return variance / n * (1 + r) / (1 - r)


def student(freedom: int, probability: float) -> float:
    """Return the quantile of Student's t; within 0.2 % for `freedom` of 7 and more.

    By the expansion around the normal quantile (Abramowitz and Stegun, 26.7.5).
    """
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))
