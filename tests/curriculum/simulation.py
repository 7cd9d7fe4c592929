"""A simulated curriculum: arms with known learning curves, to judge a bandit by.

The loss of an arm falls with its own effective training E, as L(E) = floor + height·(1 + E/scale)
to the power −decay. A pull adds to the E of its own arm, and `transfer` as much to every other
arm's; an arm that teaches nothing adds to its own alone. A pull of a window read for the
(r + 1)-th time is worth exp(−r/15) of a fresh one (after Muennighoff et al., 2023). What counts in
the end is the mean over arms of the validation loss, which training by heart does not lower.

`PYTHONPATH=. python tests/curriculum/simulation.py` prints the tables of `docs/measurements.md`.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from andread.curriculum.mixing import Arm, make_mixer
from andread.randomness import key
from andread.rundir.policy import BanditSettings, Policy

REPEATS = 15.0


@dataclass(frozen=True)
class Curve:
    """The learning curve of a source, in nats and pulls."""

    floor: float = 3.0
    height: float = 4.0
    scale: float = 200.0
    decay: float = 0.5
    noise: float = 0.4
    """Standard deviation of the loss from one sequence to the next."""
    teaches: bool = True
    """Whether a pull helps the validation loss: its own, and by transfer that of others."""
    windows: int = 1_000_000
    """Windows of unique text."""
    plateau: float = 0.0
    """Effective training that shows nothing before the curve begins to fall."""

    def loss(self, training: float) -> float:
        training = max(0.0, training - self.plateau)
        return self.floor + self.height * (1 + training / self.scale) ** -self.decay


EXHAUSTED = Curve(height=3.0, scale=20, decay=2.0)
NOISE = Curve(floor=6.0, height=0.5, scale=10, decay=2.0, noise=1.0)
TEACHING = Curve(height=4.0, scale=2000, decay=1.0)
BY_HEART = Curve(
    floor=0.1, height=6.0, scale=1500, decay=1.0, noise=0.1, teaches=False, windows=500
)
NEARLY_REPEATS_ITSELF = dataclasses.replace(BY_HEART, windows=1_000_000)
"""One text over and over, never twice with the same words: by count it is unique, and yet it is
learnt by heart. (One text over and over with the same words is `BY_HEART`, however large.)"""


@dataclass(frozen=True)
class World:
    """A set of sources; at half-time they may become others, untaught."""

    curves: tuple[Curve, ...]
    later: tuple[Curve, ...] = ()
    transfer: float = 0.2


WORLDS = {
    "alike": World((Curve(),) * 4),
    "alike, little noise": World((dataclasses.replace(Curve(), noise=0.05),) * 4),
    "unlike": World(
        (
            Curve(floor=2.2, height=4.5, scale=60, decay=0.6, noise=0.5),
            Curve(floor=2.8, height=3.8, scale=150, decay=0.45, noise=0.3),
            Curve(floor=3.2, height=3.5, scale=400, decay=0.4, noise=0.7),
        ),
        transfer=0.4,
    ),
    "one teaches": World((TEACHING, EXHAUSTED, EXHAUSTED, NOISE), transfer=0.05),
    "by heart": World((Curve(), Curve(), Curve(), BY_HEART)),
    "nearly repeats itself": World((Curve(), Curve(), Curve(), NEARLY_REPEATS_ITSELF)),
    "roles switch": World(
        (TEACHING, EXHAUSTED, EXHAUSTED, NOISE),
        (EXHAUSTED, TEACHING, EXHAUSTED, NOISE),
        transfer=0.05,
    ),
    "sixteen": World((TEACHING,) * 4 + (EXHAUSTED,) * 10 + (NOISE,) * 2, transfer=0.05),
    "late bloomers": World(
        (Curve(), Curve(), *(Curve(height=3, scale=800, decay=1, plateau=4000),) * 2), transfer=0.1
    ),
    "small teacher": World(
        (EXHAUSTED, EXHAUSTED, NOISE, dataclasses.replace(TEACHING, windows=200)), transfer=0.05
    ),
    "one small": World((Curve(),) * 3 + (dataclasses.replace(Curve(), windows=200),)),
}


@dataclass(frozen=True)
class Outcome:
    """What a run led to."""

    loss: float
    """Mean validation loss over the arms, in nats."""
    shares: tuple[float, ...]
    """Shares of the pulls, over the whole run."""
    late: tuple[float, ...]
    """Shares of the pulls over the last quarter."""


def simulate(world: World, policy: Policy, seed: int, steps: int = 600, batch: int = 32) -> Outcome:
    """Run `steps` steps of `batch` sequences; two policies of one seed meet the same noise."""
    curves = world.curves
    mixer = make_mixer(policy, [Arm(f"a{i}", c.windows) for i, c in enumerate(curves)], 0)
    stream, noise = key(seed, "mix"), [random.Random(f"{seed} {i}") for i in range(len(curves))]
    training = [0.0] * len(curves)
    pulls = [0] * len(curves)
    early = [0] * len(curves)
    for step in range(1, steps + 1):
        if step == steps // 2 and world.later:
            training = [
                0.0 if old != new else value
                for old, new, value in zip(curves, world.later, training, strict=True)
            ]
            curves = world.later
        if step == steps - steps // 4:
            early = list(pulls)
        pulled = [mixer.draw(step, slot, stream) for slot in range(batch)]
        losses = [curves[i].loss(training[i]) + noise[i].gauss(0, curves[i].noise) for i in pulled]
        counts = [pulled.count(i) for i in range(len(curves))]
        gains = [
            n * math.exp(-(pulls[i] // curves[i].windows) / REPEATS) for i, n in enumerate(counts)
        ]
        taught = sum(g for g, curve in zip(gains, curves, strict=True) if curve.teaches)
        for i, curve in enumerate(curves):
            shared = world.transfer * (taught - gains[i]) if curve.teaches else 0.0
            training[i] += gains[i] + shared
            pulls[i] += counts[i]
        mixer.observe(step, pulled, losses, [pulls[i] / c.windows for i, c in enumerate(curves)])
    validation = [
        curve.loss(value if curve.teaches else 0.0)
        for curve, value in zip(curves, training, strict=True)
    ]
    late = [all_ - before for all_, before in zip(pulls, early, strict=True)]
    return Outcome(
        statistics.fmean(validation),
        tuple(p / sum(pulls) for p in pulls),
        tuple(p / sum(late) for p in late),
    )


def compare(
    world: World, policy: Policy, seeds: range, **how: int
) -> tuple[float, float, list[Outcome]]:
    """Return mean and standard error of the loss over uniform's, by paired seeds, and the runs."""
    runs = [simulate(world, policy, seed, **how) for seed in seeds]
    gaps = [
        run.loss - simulate(world, Policy(), seed, **how).loss
        for run, seed in zip(runs, seeds, strict=True)
    ]
    return statistics.fmean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps)), runs


def report(policy: Policy, worlds: Iterable[str], seeds: range) -> None:
    """Print how `policy` fares against uniform in each of `worlds`, as rows of a table."""
    for name in worlds:
        gap, error, runs = compare(WORLDS[name], policy, seeds)
        shares = [statistics.fmean(share) for share in zip(*(r.shares for r in runs), strict=True)]
        shown = " ".join(f"{share:.2f}" for share in shares[:5])
        print(f"| {name} | {gap:+.4f} ± {error:.4f} | {shown} |", flush=True)


if __name__ == "__main__":
    print("ucb, default settings")
    report(Policy(algorithm="ucb"), WORLDS, range(8))
    repeating = ("by heart", "one small", "small teacher")
    for algorithm, limit in (("uniform", 4), ("uniform", 16), ("ucb", 4)):
        print(f"{algorithm}, max_epochs {limit}")
        report(Policy(algorithm=algorithm, max_epochs=limit), repeating, range(4))
    telling = ("unlike", "one teaches", "roles switch", "sixteen", "by heart", "late bloomers")
    for temperature in (0.5, 1.0, 4.0):
        print(f"ucb, temperature {temperature}")
        settings = BanditSettings(temperature=temperature)
        report(Policy(algorithm="ucb", bandit=settings), telling, range(4))
