"""The mix of the sources at each step: a function of the steps before, with a lag of one.

`observe(N)` takes in step N and fixes the probabilities of step N + 2; those of N + 1 were fixed
one step earlier, from rewards up to N − 1. So the losses of step N may be read back while N + 1
already runs, and reading them late changes nothing. The state through N is the arms' statistics
and the probabilities of N + 1 and N + 2; `record` gives it exactly, `restore` takes it up.

Every algorithm, the baselines too, goes through the same projection onto floors and caps.

Arms are exactly the live sources. An arm of the record without a live source is a zombie: kept by
name for people to see, never pulled, and in no sum. A pivot starts fresh and drops it. What the
policy in force still says of a source that is gone is left out (`ignored`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from andread.curriculum.bandit import ArmState, Bandit, worth
from andread.curriculum.projection import project
from andread.randomness import uniform
from andread.rundir.errors import DataError
from andread.rundir.feasibility import obeyed
from andread.rundir.policy import Policy

Event = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """A live source and how many training windows it has."""

    name: str
    windows: int


@dataclass(frozen=True)
class Zombie:
    """An arm of an earlier state whose source is gone, with what it held when last seen."""

    name: str
    pulls: int
    weight: float


class Mixer:
    """The probabilities of the arms, step by step. Made by `make_mixer` and `restore`."""

    def __init__(
        self,
        policy: Policy,
        arms: Sequence[Arm],
        step: int,
        states: list[ArmState],
        epochs: list[float],
        zombies: Sequence[Zombie] = (),
        newcomers: Sequence[str] = (),
        pending: Sequence[Sequence[float]] = (),
    ) -> None:
        self.policy = policy
        self.arms = tuple(arms)
        self.names = tuple(arm.name for arm in arms)
        self.step = step
        """The last step observed."""
        self.ignored: tuple[str, ...]
        """Sources that the policy names and that are not live."""
        self.zombies = tuple(zombies)
        self.newcomers = tuple(newcomers)
        """Arms without a state in the record that this mixer was restored from."""
        self._bandit = Bandit(states, policy.bandit)
        self._epochs = epochs
        self._obeyed, self.ignored = obeyed(policy, self.names, step)
        fresh = {later: self._mix(later) for later in (step + 1, step + 2)}
        self._shared = fresh[step + 2][1]
        fixed = [tuple(p) for p in pending] or [mixed for mixed, _ in fresh.values()]
        self._probabilities = dict(zip(fresh, fixed, strict=True))

    def probabilities(self, step: int) -> tuple[float, ...]:
        """Return each arm's share of the pulls of `step`: one or two after the last observed."""
        if step not in self._probabilities:
            raise ValueError(f"step {step} is not fixed: the last one observed is {self.step}")
        return self._probabilities[step]

    def draw(self, step: int, slot: int, stream: int) -> int:
        """Return the arm of sequence `slot` of `step`, drawn from the generator `stream`."""
        return pick(self.probabilities(step), uniform(stream, step, slot))

    def observe(
        self,
        step: int,
        pulled: Sequence[int],
        losses: Sequence[float] | None,
        epochs: Sequence[float],
    ) -> list[Event]:
        """Take in `step`, the one after the last observed, and fix the probabilities of step + 2.

        `pulled` and `losses` hold the arm and the loss of each sequence; a step that was not
        applied has losses None and teaches nothing. `epochs` tell how often each source was read
        so far. Returns an event for each source that passed `max_epochs`, and one when those
        sources must share what the others' caps leave over.
        """
        if step != self.step + 1:
            raise ValueError(f"step {step} does not follow step {self.step}")
        if len(epochs) != len(self.arms):
            raise ValueError(f"{len(epochs)} epochs for {len(self.arms)} arms")
        if losses is not None:
            again = {place for place, passes in enumerate(epochs) if passes > 1}
            self._bandit.observe(pulled, losses, again)
        sunk, shared = self.sunk, self._shared
        self.step, self._epochs = step, [float(value) for value in epochs]
        mixed, self._shared = self._mix(step + 2)
        self._probabilities = {step + 1: self._probabilities[step + 1], step + 2: mixed}
        events: list[Event] = [
            {"event": "sunk", "step": step, "arm": name, "epochs": value}
            for name, value in zip(self.names, self._epochs, strict=True)
            if name in self.sunk and name not in sunk
        ]
        if self._shared and not shared:
            events.append({"event": "remainder", "step": step, "arms": list(self.sunk)})
        return events

    @property
    def pulls(self) -> int:
        """Return the sequences that this policy's arms have given; a fresh bandit has 0."""
        return sum(state.pulls for state in self._bandit.arms)

    @property
    def sunk(self) -> tuple[str, ...]:
        """Return the arms that were read more than `max_epochs` times over."""
        limit = self.policy.max_epochs or math.inf
        return tuple(
            name for name, value in zip(self.names, self._epochs, strict=True) if value > limit
        )

    def record(self) -> dict[str, Any]:
        """Return the state through the last observed step, for JSON, exactly."""
        return {
            "policy": self.policy.id,
            "step": self.step,
            "arms": {
                name: {**dataclasses.asdict(state), "epochs": epochs}
                for name, state, epochs in zip(
                    self.names, self._bandit.arms, self._epochs, strict=True
                )
            },
            "probabilities": [
                dict(zip(self.names, self._probabilities[step], strict=True))
                for step in (self.step + 1, self.step + 2)
            ],
            "zombies": [dataclasses.asdict(zombie) for zombie in self.zombies],
        }

    def view(self, context: int) -> dict[str, Any]:
        """Return what .state.json shows a person; `context` is tokens a sequence."""
        warmup = self.policy.warmup.steps
        warming = self.policy.warming(self.step + 1)
        done = self.step - (self.policy.warmup_end - warmup)
        return {
            "policy": self.policy.id,
            "algorithm": self.policy.algorithm,
            "step": self.step,
            "phase": {
                "name": "warm-up" if warming else "all",
                "steps": done if warming else self.step - self._all_since(),
                "of": warmup if warming else None,
            },
            "arms": {
                name: {
                    "pulls": state.pulls,
                    "tokens": state.pulls * context,
                    "epochs": epochs,
                    "ema_loss": state.fast if state.pulls else None,
                    "ema_reward": state.average_reward,
                    "weight": weight,
                    "probability": probability,
                    "floor": self._obeyed.floors.get(name, 0.0),
                    "cap": self._obeyed.caps.get(name, 1.0),
                }
                for name, state, epochs, weight, probability in zip(
                    self.names,
                    self._bandit.arms,
                    self._epochs,
                    self._weights(),
                    self._probabilities[self.step + 1],
                    strict=True,
                )
            },
            "zombies": {
                zombie.name: {"pulls": zombie.pulls, "weight": zombie.weight}
                for zombie in self.zombies
            },
        }

    def _all_since(self) -> int:
        """Return the last step before the phase of all sources, under this policy."""
        return max(self.policy.warmup_end, self.policy.begins_after)

    def _weights(self) -> list[float]:
        """Return the weight of each arm by the policy's algorithm, before the projection."""
        match self.policy.algorithm:
            case "proportional":
                return [float(arm.windows) for arm in self.arms]
            case "fixed":
                return [float(self.policy.weights[name]) for name in self.names]
            case "ucb":
                return [
                    state.weight * worth(epochs)
                    for state, epochs in zip(self._bandit.arms, self._epochs, strict=True)
                ]
            case _:
                return [1.0] * len(self.arms)

    def _mix(self, step: int) -> tuple[tuple[float, ...], bool]:
        """Return the probabilities of `step` by the state so far.

        The second value tells whether sunk arms get more than their floors, because the others
        cannot reach 1 within their caps.
        """
        live = self._obeyed.live(step, self.names)
        sunk = set(self.sunk).intersection(live)
        floors = {name: self._obeyed.floors.get(name, 0.0) for name in live}
        caps = {name: self._obeyed.caps.get(name, 1.0) for name in live}
        reach = math.fsum(floors[name] if name in sunk else caps[name] for name in live)
        shared = bool(sunk) and reach < 1.0
        if shared:
            floors.update({name: caps[name] for name in live if name not in sunk})
        else:
            caps.update({name: floors[name] for name in sunk})
        weights = dict(zip(self.names, self._weights(), strict=True))
        shares = project(
            [weights[name] for name in live], list(floors.values()), list(caps.values())
        )
        share = dict(zip(live, shares, strict=True))
        return tuple(share.get(name, 0.0) for name in self.names), shared


def make_mixer(
    policy: Policy, arms: Sequence[Arm], begins_after: int, epochs: Sequence[float] = ()
) -> Mixer:
    """Return a fresh mixer whose first step is `begins_after + 1`.

    `epochs` tell how often each source was read before that; none for a run that begins.
    Raises `ConfigError` if the policy cannot be obeyed with these arms.
    """
    states = [ArmState(weight=1.0 / len(arms)) for _ in arms]
    return Mixer(policy, arms, begins_after, states, list(epochs) or [0.0] * len(arms))


def restore(
    policy: Policy, arms: Sequence[Arm], record: Mapping[str, Any], epochs: Sequence[float] = ()
) -> tuple[Mixer, tuple[Zombie, ...]]:
    """Return the mixer that goes on from `record`, bit for bit, and the zombies found in it.

    Arms unknown to the record start fresh, at the mean weight of the others; they are the mixer's
    `newcomers`, and were read `epochs` times before, as in `make_mixer`. If the set of arms
    changed, the pending probabilities are fixed anew.
    Raises `DataError` if the record is damaged or of another policy.
    """
    if record.get("policy") != policy.id:
        raise DataError(
            f"the bandit's record is of policy {record.get('policy')}, not {policy.id}",
            "a policy starts with a fresh bandit",
        )
    try:
        return _restore(policy, arms, record, epochs or [0.0] * len(arms))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"the bandit's record is damaged: {error!r}", "resume from an older checkpoint"
        ) from error


def _restore(
    policy: Policy, arms: Sequence[Arm], record: Mapping[str, Any], read: Sequence[float]
) -> tuple[Mixer, tuple[Zombie, ...]]:
    names = [arm.name for arm in arms]
    epochs = {name: float(table["epochs"]) for name, table in record["arms"].items()}
    known = {name: _arm_state(table) for name, table in record["arms"].items()}
    zombies = [Zombie(**table) for table in record["zombies"] if table["name"] not in names]
    zombies += [
        Zombie(name, state.pulls, state.weight)
        for name, state in known.items()
        if name not in names
    ]
    newcomers = [name for name in names if name not in known]
    weights = [known[name].weight for name in names if name in known]
    fresh = math.fsum(weights) / len(weights) if weights else 1.0 / len(arms)
    pending = []
    if set(names) == set(known):
        pending = [[table[name] for name in names] for table in record["probabilities"]]
        if not all(abs(math.fsum(shares) - 1) < 1e-9 and min(shares) >= 0 for shares in pending):
            raise ValueError("pending probabilities do not sum to 1")
    mixer = Mixer(
        policy,
        arms,
        int(record["step"]),
        [known.get(name) or ArmState(weight=fresh) for name in names],
        [epochs.get(name, before) for name, before in zip(names, read, strict=True)],
        zombies,
        newcomers,
        pending,
    )
    return mixer, mixer.zombies


def _arm_state(table: Mapping[str, Any]) -> ArmState:
    """Return the state that `record` wrote; `ValueError` for numbers that cannot be."""
    state = ArmState(*(table[field.name] for field in dataclasses.fields(ArmState)))
    if not all(math.isfinite(value) for value in dataclasses.astuple(state)) or state.count < 1:
        raise ValueError(f"impossible numbers: {dict(table)}")
    return state


def pick(probabilities: Sequence[float], point: float) -> int:
    """Return the arm in whose stretch of [0, 1) `point` lies; never one of probability 0."""
    reached = 0.0
    last = -1
    for place, probability in enumerate(probabilities):
        if probability > 0.0:
            last = place
            reached += probability
            if point < reached:
                return place
    return last  # the sum fell short of 1 by rounding
