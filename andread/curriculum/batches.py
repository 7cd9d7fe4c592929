"""Batches as a function of (seed, step): which sources a step draws, and which windows of them.

Each sequence of a batch draws its own source from the mixer's probabilities. A source is read in
a keyed permutation of its windows, another one each pass; its position is the count of windows
used, so seeking costs nothing. `draw` changes nothing: a batch may be drawn again. `advance` moves
on, and at a step boundary `record` is all there is to keep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andread import randomness
from andread.curriculum.mixing import Arm, Event, Mixer, make_mixer, restore
from andread.curriculum.tokens import SourceTokens
from andread.randomness import Permutation
from andread.rundir.errors import DataError
from andread.rundir.policy import Policy, policy_at


@dataclass(frozen=True)
class Batch:
    """The sequences of one step.

    `windows` is int64 [batch, context + 1]; `arms` the place of each sequence's source.
    """

    step: int
    windows: NDArray[np.int64]
    arms: tuple[int, ...]


class Curriculum:
    """The feeding side: sources, their positions, and the mixer that chooses among them."""

    def __init__(
        self,
        sources: Sequence[SourceTokens],
        policies: Sequence[Policy],
        seed: int,
        batch: Callable[[Policy], int],
        context: int,
        step: int = 0,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin after `step`, from the `record` of that boundary if there is one.

        `batch` gives the sequences of a step under a policy.
        A record's mixer is taken up only if its policy is the one in force at the next step.
        """
        self.sources = tuple(sources)
        self.names = tuple(source.name for source in sources)
        self.step = step
        self._policies = policies
        self._seed = seed
        self._batch = batch
        self._context = context
        self._draws = randomness.key(seed, "pull")
        self._orders: dict[tuple[int, int], Permutation] = {}
        record = record or {}
        try:
            self._positions = {name: int(n) for name, n in record.get("positions", {}).items()}
        except (TypeError, ValueError, AttributeError) as error:
            raise DataError(f"the recorded positions are damaged: {error}") from None
        self._arms = [Arm(source.name, len(source.train)) for source in sources]
        saved = record.get("mixer")
        policy = policy_at(policies, step + 1)
        if saved and saved.get("policy") == policy.id:
            self.mixer, _ = restore(policy, self._arms, saved, self.epochs())
        else:
            self.mixer = self._fresh(policy, step)

    @property
    def policy(self) -> Policy:
        """Return the policy in force at the next step."""
        return self.mixer.policy

    def draw(self, step: int) -> Batch:
        """Return the batch of `step`, the next one. Changes nothing."""
        return self._draw(step, [self._positions.get(name, 0) for name in self.names])

    def ahead(self, batch: Batch) -> Batch | None:
        """Return the batch that follows `batch`, the next one, before `advance` moved past it.

        None if another policy begins between the two. What follows was fixed before, so it is
        the very batch that `draw` gives afterwards.
        """
        if policy_at(self._policies, batch.step + 1).id != self.policy.id:
            return None
        used = Counter(batch.arms)
        positions = [self._positions.get(n, 0) + used[arm] for arm, n in enumerate(self.names)]
        return self._draw(batch.step + 1, positions)

    def _draw(self, step: int, positions: list[int]) -> Batch:
        """Return the batch of `step` where each source has given `positions` windows before."""
        batch = self._batch(self.policy)
        windows = np.empty((batch, self._context + 1), dtype=np.int64)
        arms = []
        for slot in range(batch):
            arm = self.mixer.draw(step, slot, self._draws)
            windows[slot] = self._window(arm, positions[arm])
            positions[arm] += 1
            arms.append(arm)
        return Batch(step, windows, tuple(arms))

    def pulls(self, batch: Batch) -> dict[str, int]:
        """Return how many sequences of `batch` each source gave, those alone that gave any."""
        return {self.names[arm]: count for arm, count in sorted(Counter(batch.arms).items())}

    def advance(self, batch: Batch, losses: Sequence[float] | None) -> list[Event]:
        """Move on past `batch`; `losses` of its sequences, None if the step was not applied.

        Returns what the mixer has to tell.
        """
        assert batch.step == self.step + 1, "one step after the other"
        self.step = batch.step
        for arm in batch.arms:
            name = self.names[arm]
            self._positions[name] = self._positions.get(name, 0) + 1
        events = self.mixer.observe(batch.step, batch.arms, losses, self.epochs())
        policy = policy_at(self._policies, self.step + 1)
        if policy.id != self.mixer.policy.id:
            self.mixer = self._fresh(policy, self.step)
        return events

    def epochs(self) -> list[float]:
        """Return how many times over each live source was read so far, by its unique tokens."""
        return [source.epochs(self._positions.get(source.name, 0)) for source in self.sources]

    def record(self) -> dict[str, Any]:
        """Return the state after the last step, for JSON, exactly."""
        return {"positions": dict(self._positions), "mixer": self.mixer.record()}

    def view(self) -> dict[str, Any]:
        """Return what .state.json shows a person."""
        return self.mixer.view(self._context)

    def _fresh(self, policy: Policy, step: int) -> Mixer:
        return make_mixer(policy, self._arms, step, self.epochs())

    def _window(self, arm: int, position: int) -> NDArray[np.int64]:
        source = self.sources[arm].train
        turn, index = divmod(position, len(source))
        order = self._orders.get((arm, turn))
        if order is None:
            self._orders = {key: kept for key, kept in self._orders.items() if key[0] != arm}
            stream = randomness.key(self._seed, "order", self.names[arm], turn)
            order = self._orders[arm, turn] = Permutation(len(source), stream)
        return source.window(order(index))


def validation_indices(source: SourceTokens, seed: int, count: int) -> list[int]:
    """Return the windows of `source` that every audit measures: drawn once by seed, then fixed."""
    windows = len(source.validation)
    if windows == 0:
        return []
    order = Permutation(windows, randomness.key(seed, "validation", source.name))
    return [order(index) for index in range(min(count, windows))]
