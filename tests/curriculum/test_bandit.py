"""The bandit's rewards and scores, against the formulas and by hand."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest

from andread.curriculum.bandit import ArmState, Bandit, worth
from andread.rundir.policy import BanditSettings

SETTINGS = BanditSettings()


def bandit(n: int, settings: BanditSettings = SETTINGS) -> Bandit:
    return Bandit([ArmState(weight=1 / n) for _ in range(n)], settings)


def test_the_averages_are_plain_means_until_the_horizon_and_then_exponential() -> None:
    rng = random.Random(1)
    losses = [rng.gauss(4, 1) for _ in range(700)]
    arm = ArmState(weight=1)
    for done, loss in enumerate(losses, 1):
        arm.see(loss, SETTINGS)
        if done <= SETTINGS.slow:
            assert arm.slow == pytest.approx(statistics.fmean(losses[:done]))
        if done == SETTINGS.fast:
            assert arm.fast == pytest.approx(arm.slow)
    for horizon, value in ((SETTINGS.slow, arm.slow), (SETTINGS.fast, arm.fast)):
        rates = (1 - 1 / horizon) ** np.arange(700 - horizon)[::-1] / horizon
        start = statistics.fmean(losses[:horizon]) * (1 - 1 / horizon) ** (700 - horizon)
        assert value == pytest.approx(start + float(np.dot(rates, losses[horizon:])))


def test_the_spread_is_the_noise_and_the_error_that_of_the_fast_average() -> None:
    rng = random.Random(2)
    fasts, spreads = [], []
    for _ in range(300):
        arm = ArmState(weight=1)
        for _ in range(400):
            arm.see(rng.gauss(4, 0.7), SETTINGS)
        fasts.append(arm.fast)
        spreads.append(math.sqrt(arm.variance))
    assert statistics.fmean(spreads) == pytest.approx(0.7, rel=0.05)
    assert statistics.stdev(fasts) == pytest.approx(0.7 / math.sqrt(99), rel=0.15)


@pytest.mark.parametrize(
    ("slow", "fast", "spread", "reward"),
    [
        (4.0, 4.0, 1.0, 0.0),
        (4.0, 4.5, 1.0, 0.0),
        (4.1, 4.0, 1.0, 0.1 * math.sqrt(99)),
        (5.0, 4.0, 1.0, 3.0),
        (4.1, 4.0, 0.0, 3.0),
        (4.0, 4.0, 0.0, 0.0),
    ],
)
def test_the_reward(slow: float, fast: float, spread: float, reward: float) -> None:
    arm = ArmState(weight=1, pulls=500, slow=slow, fast=fast)
    assert arm.reward(spread, SETTINGS) == pytest.approx(reward, abs=1e-12)


def test_an_arm_of_little_noise_is_measured_by_the_median_spread() -> None:
    """Both fall equally fast; the one learnt by heart must not look fifty times better."""
    rng, arms = random.Random(3), bandit(3)
    for step in range(200):
        fall = 4 - 0.0005 * step
        losses = [fall + rng.gauss(0, noise) for noise in (0.5, 0.5, 0.01) for _ in range(8)]
        arms.observe([0] * 8 + [1] * 8 + [2] * 8, losses)
    quiet, *_ = (arm.average_reward for arm in reversed(arms.arms))
    assert quiet < 1.0  # alone, progress of 0.01 nats over noise of 0.001 would be clipped at 3


def test_the_score_is_a_discounted_upper_confidence_bound() -> None:
    settings = BanditSettings(discount=0.5, exploration=2.0)
    arms = bandit(2, settings)
    assert arms.scores() == [2 * math.sqrt(math.log(2))] * 2  # one virtual pull each
    arms.observe([0, 0, 0], [1.0, 1.0, 1.0])
    assert [arm.count for arm in arms.arms] == [4.0, 1.0]
    arms.observe([1], [1.0])
    assert [arm.count for arm in arms.arms] == [2.5, 2.0]
    arms.arms[0].rewards = 5.0
    total = math.log(4.5)
    assert arms.scores() == pytest.approx(
        [2 + 2 * math.sqrt(total / 2.5), 2 * math.sqrt(total / 2.0)]
    )


def test_the_weights_move_slowly_towards_the_softmax() -> None:
    settings = BanditSettings(smoothing=0.1, exploration=0.0, temperature=0.5, discount=1.0)
    arms = bandit(2, settings)
    arms.arms[0].rewards = 1e9
    arms.arms[0].count = 1e9
    arms.observe([], [])
    target = 1 / (1 + math.exp(-1 / 0.5))
    assert arms.arms[0].weight == pytest.approx(0.5 + 0.1 * (target - 0.5))
    assert math.fsum(arm.weight for arm in arms.arms) == pytest.approx(1)


def test_an_enormous_loss_stays_finite() -> None:
    arms = bandit(2)
    for _ in range(300):
        arms.observe([0, 1], [1.7e308, 1.0])
        arms.observe([0, 1], [-1.7e308, 1.0])
    for arm in arms.arms:
        assert all(math.isfinite(value) for value in vars(arm).values())


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_our_own_mistake(loss: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        bandit(1).observe([0], [loss])


def test_tokens_are_worth_less_with_each_repeat() -> None:
    assert worth(0.0) == worth(0.5) == worth(1.0) == 1.0
    assert worth(4.0) == pytest.approx(0.823, abs=0.001)
    assert worth(16.4) == pytest.approx(1 / math.e)
    assert worth(1e9) == 0.0


def test_an_arm_that_is_read_again_earns_nothing_and_is_watched_on() -> None:
    both = bandit(2)
    for step in range(60):
        losses = [6 - step * 0.05 + slot % 2 for slot in range(8)]
        both.observe([0] * 8 + [1] * 8, losses * 2, again={1})
    fresh, again = both.arms
    assert fresh.average_reward > 1 and again.average_reward == 0
    assert (again.fast, again.pulls, again.count) == (fresh.fast, fresh.pulls, fresh.count)
    assert fresh.weight > again.weight
