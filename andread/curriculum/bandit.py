"""The bandit: from each arm's own losses to the weights of all arms.

A pull is one sequence. What an arm earns is learning progress in units of its own noise:

    reward = clip((slow − fast) / standard error of fast, 0, clip)

with slow and fast moving averages of the arm's loss over 200 and 50 pulls. The spread behind the
standard error is at least the median over the arms, so that an arm whose losses hardly differ
(one learnt by heart) does not turn a tiny progress into a large reward. The score is a discounted
upper confidence bound,

    score = S / n + exploration · sqrt(ln Σn / n)

where n counts pulls and S sums rewards, both fading by `discount` a step, above one virtual pull
without reward that never fades. The weights follow the softmax of the scores slowly, for
probabilities that chase noise cost more than they gain.

A source that is being read again earns nothing: what its loss loses then may be learnt by heart.
And its weight counts by what its tokens are still worth (`worth`), which repeats use up.

Everything is a float or an integer of Python: JSON carries it exactly.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from andread.rundir.policy import BanditSettings

_REPEATS = 15.4
"""Repeats after which another is worth 1/e of a fresh token (Muennighoff et al., 2023)."""
_LARGEST_LOSS = 1e100
"""Losses are clipped to this, so that no square overflows."""


@dataclass
class ArmState:
    """What the bandit knows of one arm; the record of it is its fields."""

    weight: float
    """Its weight by its score; only ratios matter."""
    pulls: int = 0
    """Sequences drawn from it in applied steps, under this policy."""
    slow: float = 0.0
    """Slow moving average of its loss, in nats; the plain mean until it has pulls enough."""
    fast: float = 0.0
    """Fast moving average of its loss."""
    variance: float = 0.0
    """Slow moving average of the squared distance of a loss from the fast average before it."""
    count: float = 1.0
    """Discounted pulls, and the virtual one."""
    rewards: float = 0.0
    """Discounted sum of rewards."""

    def see(self, loss: float, settings: BanditSettings) -> None:
        """Take in the loss of one pull."""
        loss = min(max(loss, -_LARGEST_LOSS), _LARGEST_LOSS)
        self.pulls += 1
        slow_rate = 1.0 / min(self.pulls, settings.slow)
        if self.pulls > 1:  # the first pull has nothing to be distant from
            rate = 1.0 / min(self.pulls - 1, settings.slow)
            self.variance += rate * ((loss - self.fast) ** 2 - self.variance)
        self.slow += slow_rate * (loss - self.slow)
        self.fast += (loss - self.fast) / min(self.pulls, settings.fast)

    def reward(self, spread: float, settings: BanditSettings) -> float:
        """Return its progress in standard errors, from 0 to `clip`; `spread` is in nats."""
        progress = self.slow - self.fast
        error = spread / math.sqrt(2 * settings.fast - 1)
        if progress <= 0.0:
            return 0.0
        return min(progress / error, settings.clip) if error > 0.0 else settings.clip

    @property
    def average_reward(self) -> float:
        """Return the discounted mean of its rewards, the virtual pull counted as none."""
        return self.rewards / self.count


def worth(epochs: float) -> float:
    """Return what another token of a source read `epochs` times is worth, against a fresh one."""
    return math.exp(-max(0.0, epochs - 1.0) / _REPEATS)


class Bandit:
    """The arms' states, by place."""

    def __init__(self, arms: list[ArmState], settings: BanditSettings) -> None:
        self.arms = arms
        self.settings = settings

    def observe(
        self, pulled: Sequence[int], losses: Sequence[float], again: Collection[int] = ()
    ) -> None:
        """Take in one applied step: the arm and the loss, in nats a token, of each sequence.

        The arms `again` are read for another time, and earn nothing.
        """
        if not all(math.isfinite(loss) for loss in losses):
            raise ValueError("an applied step has a loss that is not finite")
        before = [arm.pulls for arm in self.arms]
        for place, loss in zip(pulled, losses, strict=True):
            self.arms[place].see(loss, self.settings)
        spreads = [math.sqrt(arm.variance) for arm in self.arms]
        seen = [s for s, arm in zip(spreads, self.arms, strict=True) if arm.pulls > 1]
        median = statistics.median(seen) if seen else 0.0
        for place, (arm, spread) in enumerate(zip(self.arms, spreads, strict=True)):
            new = arm.pulls - before[place]
            earns = new and place not in again
            reward = arm.reward(max(spread, median), self.settings) if earns else 0.0
            arm.count = 1.0 + self.settings.discount * (arm.count - 1.0) + new
            arm.rewards = self.settings.discount * arm.rewards + new * reward
        self._follow_scores()

    def scores(self) -> list[float]:
        """Return each arm's discounted upper confidence bound, in units of reward."""
        total = math.log(math.fsum(arm.count for arm in self.arms))
        return [
            arm.average_reward + self.settings.exploration * math.sqrt(total / arm.count)
            for arm in self.arms
        ]

    def _follow_scores(self) -> None:
        """Move the weights one step towards the softmax of the scores."""
        scores = self.scores()
        highest = max(scores)
        powers = [math.exp((score - highest) / self.settings.temperature) for score in scores]
        total = math.fsum(powers)
        for arm, power in zip(self.arms, powers, strict=True):
            arm.weight += self.settings.smoothing * (power / total - arm.weight)
