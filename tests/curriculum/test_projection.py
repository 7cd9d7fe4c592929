"""The projection's properties, on any weights and any bounds; scipy is the independent solver."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog

from andread.curriculum.projection import LEAST_WEIGHT, project
from andread.rundir.errors import ConfigError

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A loaded machine is no failure."""

Case = tuple[list[float], list[float], list[float]]

shares = st.one_of(
    st.floats(0, 1), st.sampled_from([0.0, 1.0, 0.5, 1 / 3, 0.1, 1e-12, 5e-324, 1 - 2**-53])
)
weights = st.one_of(st.floats(0, 1e300), st.floats(0.1, 10), st.sampled_from([0.0, 1.0, 5e-324]))


@st.composite
def feasible(draw: st.DrawFn) -> Case:
    """Draw bounds around a point of the simplex: some slack to each side, none for some arms."""
    n = draw(st.integers(1, 17))
    raw = [draw(st.floats(0, 1)) for _ in range(n)]
    total = math.fsum(raw)
    point = [value / total for value in raw] if total > 1e-3 else [1.0] + [0.0] * (n - 1)
    floors = [value * (1 - draw(shares)) for value in point]
    caps = [min(1.0, value + draw(shares)) for value in point]
    return [draw(weights) for _ in range(n)], floors, caps


@st.composite
def anything(draw: st.DrawFn) -> Case:
    n = draw(st.integers(1, 8))
    lists = [[draw(values) for _ in range(n)] for values in (weights, shares, shares)]
    return lists[0], lists[1], lists[2]


@unhurried
@given(feasible())
def test_the_shares_sum_to_one_within_every_bound(case: Case) -> None:
    result = project(*case)
    assert abs(math.fsum(result) - 1) <= 1e-12
    for share, floor, cap in zip(result, *case[1:], strict=True):
        assert floor <= share <= cap


@unhurried
@given(feasible())
def test_unbounded_arms_keep_the_order_and_the_ratios_of_their_weights(case: Case) -> None:
    result = project(*case)
    largest = max(case[0])
    free = [
        (max(weight / largest, LEAST_WEIGHT) if largest else 1.0, share)
        for weight, floor, cap, share in zip(*case, result, strict=True)
        if floor < share < cap
    ]
    for weight, share in free:
        for other_weight, other_share in free:
            assert (weight <= other_weight) or (share >= other_share)
            assert share * other_weight == pytest.approx(other_share * weight, rel=1e-9, abs=1e-300)


@unhurried
@given(feasible(), st.floats(1e-6, 1e6))
def test_only_the_ratios_of_the_weights_matter(case: Case, scale: float) -> None:
    scaled = [weight * scale for weight in case[0]]
    # Scaling a subnormal changes ratios by itself.
    assume(not any(weight and weight < 1e-290 for weight in case[0]))
    for share, other in zip(project(*case), project(scaled, case[1], case[2]), strict=True):
        assert share == pytest.approx(other, abs=1e-11)


@unhurried
@given(anything())
@example(([0.0, 0.0], [1e-12, 1.0], [1.0, 1.0]))  # 1 + 1e-12 rounds up: beyond the tolerance
@example(([0.0, 0.0], [0.0, 0.0], [1e-12, 1.0 - 2e-12]))
def test_the_infeasible_is_refused_and_nothing_else(case: Case) -> None:
    _, floors, caps = case
    crossed = any(floor > cap for floor, cap in zip(floors, caps, strict=True))
    if crossed or math.fsum(floors) - 1 > 1e-12 or 1 - math.fsum(caps) > 1e-12:
        with pytest.raises(ConfigError):
            project(*case)
    else:
        assert abs(math.fsum(project(*case)) - 1) <= 1e-12


@unhurried
@given(feasible())
def test_a_root_finder_agrees(case: Case) -> None:
    raw, floors, caps = case
    largest = max(raw)
    scaled = [max(weight / largest, LEAST_WEIGHT) if largest else 1.0 for weight in raw]

    def clipped(log_scale: float) -> list[float]:
        scale = math.exp(log_scale)
        return [min(max(scale * w, f), c) for w, f, c in zip(scaled, floors, caps, strict=True)]

    def excess(log_scale: float) -> float:
        return math.fsum(clipped(log_scale)) - 1

    low, high = -60.0, 30.0
    assume(excess(low) < 0 < excess(high))  # not at the very edge of the feasible
    expected = clipped(brentq(excess, low, high, xtol=1e-15, rtol=1e-15))
    assert project(*case) == pytest.approx(expected, abs=1e-7)


@unhurried
@given(anything())
def test_linear_programming_agrees_on_what_is_feasible(case: Case) -> None:
    raw, floors, caps = case
    slack = min(
        1 - math.fsum(floors),
        math.fsum(caps) - 1,
        *(cap - floor for floor, cap in zip(floors, caps, strict=True)),
    )
    assume(abs(slack) > 1e-6)  # the solver's own tolerance is 1e-7
    crossed = any(floor > cap for floor, cap in zip(floors, caps, strict=True))
    solvable = (
        not crossed
        and linprog(
            [0.0] * len(raw),
            A_eq=[[1.0] * len(raw)],
            b_eq=[1.0],
            bounds=list(zip(floors, caps, strict=True)),
        ).success
    )
    if solvable:
        project(*case)
    else:
        with pytest.raises(ConfigError):
            project(*case)


@pytest.mark.parametrize(
    ("weights", "floors", "caps", "expected"),
    [
        ([1, 1, 2], [0, 0, 0], [1, 1, 1], [0.25, 0.25, 0.5]),
        ([1, 1, 2], [0, 0, 0], [1, 1, 0.2], [0.4, 0.4, 0.2]),
        ([1, 1, 100], [0.3, 0, 0], [1, 1, 0.5], [0.3, 0.2, 0.5]),
        ([0, 0], [0, 0], [1, 1], [0.5, 0.5]),
        ([5, 1], [0, 0], [0, 1], [0.0, 1.0]),
        ([7], [0], [1], [1.0]),
        ([1, 2], [0.5, 0.5], [1, 1], [0.5, 0.5]),
        ([1, 2], [0, 0], [0.5, 0.5], [0.5, 0.5]),
    ],
)
def test_by_hand(
    weights: list[float], floors: list[float], caps: list[float], expected: list[float]
) -> None:
    assert project(weights, floors, caps) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_weights_that_are_none_are_our_own_mistake(weight: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        project([weight, 1.0], [0, 0], [1, 1])


def test_no_arms_have_no_shares() -> None:
    with pytest.raises(ConfigError):
        project([], [], [])
