"""The interval of a mean, held against simulated series whose truth is known."""

from __future__ import annotations

import random

import pytest
from scipy import stats

from andrectl.significance import MINIMUM, estimate, student


def autoregression(r: float, n: int, seed: int) -> list[float]:
    """Return `n` values around 0, each r times the one before plus a normal one."""
    dice = random.Random(seed)
    value = dice.gauss() / (1 - r * r) ** 0.5
    found = []
    for _ in range(n):
        value = r * value + dice.gauss()
        found.append(value)
    return found


def coverage(r: float, n: int, confidence: float = 0.95, rounds: int = 300) -> float:
    hits = 0
    for seed in range(rounds):
        told = estimate(autoregression(r, n, seed), confidence)
        assert told is not None
        hits += told.low <= 0 <= told.high
    return hits / rounds


@pytest.mark.parametrize(
    ("r", "n"), [(0.0, 50), (0.0, 1000), (0.5, 100), (0.5, 1000), (0.9, 200), (0.9, 1000)]
)
def test_it_covers_the_truth_as_often_as_it_says(r: float, n: int) -> None:
    # 300 rounds: a true 95 % gives less than 91 % once in a thousand times.
    assert coverage(r, n) >= 0.91


def test_a_naive_interval_would_not() -> None:
    """What the module is for: independent values would claim 95 % and hold 40 %."""
    hits = 0
    for seed in range(200):
        values = autoregression(0.9, 400, seed)
        mean, spread = sum(values) / 400, stats.tstd(values) / 20
        hits += abs(mean) <= 1.96 * spread
    assert hits / 200 < 0.6


def test_it_is_not_wide_for_nothing() -> None:
    told = estimate(autoregression(0.0, 4000, 1), 0.95)
    assert told is not None and (told.high - told.low) / 2 < 2 * 1.96 / 4000**0.5
    assert told.effective > 1000
    close = estimate(autoregression(0.9, 4000, 1), 0.95)
    assert close is not None and 50 < close.effective < 600, "4000 / 19 = 210"


def test_a_difference_is_seen() -> None:
    values = [0.5 + x for x in autoregression(0.5, 400, 3)]
    told = estimate(values, 0.95)
    assert told is not None and told.differs and told.low < 0.5 < told.high
    assert estimate([-x for x in values], 0.95).high < 0  # type: ignore[union-attr]


def test_more_confidence_is_wider() -> None:
    values = autoregression(0.3, 200, 1)
    narrow, wide = estimate(values, 0.9), estimate(values, 0.99)
    assert narrow is not None and wide is not None
    assert wide.low < narrow.low < narrow.high < wide.high


def test_too_few_values_are_not_judged() -> None:
    assert estimate([1.0] * (MINIMUM - 1), 0.95) is None
    told = estimate([0.0] * MINIMUM, 0.95)
    assert told is not None and (told.low, told.high, told.differs) == (0, 0, False)


@pytest.mark.parametrize("freedom", [7, 9, 19])
@pytest.mark.parametrize("probability", [0.75, 0.95, 0.975, 0.995])
def test_the_quantile_is_student_s(freedom: int, probability: float) -> None:
    expected = stats.t.ppf(probability, freedom)
    assert student(freedom, probability) == pytest.approx(expected, rel=1e-3)


def test_chance_between_two_runs_widens_the_interval() -> None:
    values = [0.01 + x / 10 for x in autoregression(0.0, 4000, 1)]
    plain, allowed = estimate(values, 0.95), estimate(values, 0.95, chance=0.02)
    assert plain is not None and allowed is not None
    assert plain.differs and not allowed.differs
    assert allowed.mean == plain.mean and allowed.effective == plain.effective
    half = (allowed.high - allowed.low) / 2
    assert half == pytest.approx(student(19, 0.975) * 0.02, rel=0.05)
