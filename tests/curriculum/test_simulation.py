"""The bandit in simulated worlds, against uniform, by paired seeds.

`simulation.py` holds the worlds; the full table, with what the bandit loses, is in
`docs/measurements.md`. Here: shorter runs, and only what must not get worse unnoticed.
"""

from __future__ import annotations

import statistics

import pytest
from simulation import WORLDS, Outcome, compare

from andread.rundir.policy import BanditSettings, Policy

UCB = Policy(algorithm="ucb")
SEEDS = range(8)
SHORT = {"steps": 400, "batch": 24}


def late(runs: list[Outcome]) -> list[float]:
    """Return the mean shares of the pulls over the last quarter."""
    return [statistics.fmean(shares) for shares in zip(*(run.late for run in runs), strict=True)]


def test_the_arm_that_still_teaches_is_pulled_most_and_it_pays() -> None:
    gap, error, runs = compare(WORLDS["one teaches"], UCB, SEEDS, **SHORT)
    teaching, *others = late(runs)
    assert teaching > max(others) + 0.03
    assert gap < -0.02 - 2 * error


def test_the_bandit_follows_when_the_roles_switch() -> None:
    gap, error, runs = compare(WORLDS["roles switch"], UCB, SEEDS)
    first, second, *others = late(runs)
    assert second > max(first, *others) + 0.1
    assert gap < -2 * error


@pytest.mark.parametrize("world", ["alike", "unlike"])
def test_where_there_is_little_to_gain_nothing_is_lost(world: str) -> None:
    gap, error, _ = compare(WORLDS[world], UCB, SEEDS[:4], **SHORT)
    assert gap < 2 * error + 0.001


def test_pure_repetition_does_not_win() -> None:
    """A source whose unique text is read again earns nothing, and the others get its pulls."""
    gap, error, runs = compare(WORLDS["by heart"], UCB, SEEDS[:4], **SHORT)
    assert max(run.shares[3] for run in runs) < 1 / 4
    assert gap < -2 * error


def test_a_source_that_nearly_repeats_itself_gets_no_third() -> None:
    """It gets more, for its training loss falls all the way and nothing counts it: the limit."""
    _, _, runs = compare(WORLDS["nearly repeats itself"], UCB, SEEDS[:4], **SHORT)
    assert max(run.shares[3] for run in runs) < 1 / 3


def test_an_epoch_limit_stops_learning_by_heart() -> None:
    limited = Policy(algorithm="ucb", max_epochs=2)
    gap, error, runs = compare(WORLDS["by heart"], limited, SEEDS[:4], **SHORT)
    assert late(runs)[3] == 0
    assert gap < -2 * error


def test_the_simulation_shows_the_trap_of_a_low_temperature() -> None:
    """The tests above can fail: at a low temperature the arm that nearly repeats itself wins."""
    cold = Policy(algorithm="ucb", bandit=BanditSettings(temperature=0.2))
    gap, error, runs = compare(WORLDS["nearly repeats itself"], cold, SEEDS[:4], **SHORT)
    assert min(run.shares[3] for run in runs) > 0.35
    assert gap > 2 * error
