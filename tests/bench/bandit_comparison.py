"""The curriculum's policies against each other on real text, at equal steps and paired seeds.

    PYTHONPATH=. python tests/bench/bandit_comparison.py RESULTS.jsonl [--world polluted …]
    PYTHONPATH=. python tests/bench/bandit_comparison.py RESULTS.jsonl --table

The measure, fixed before the first run: the validation loss of each source that the world aims
at, in nats a token, after the last step, over 128 windows drawn by seed; of these the mean and
the worst. Policies of one seed share initial weights, the order in which each source is read and
the windows validated, and differ only in what they pull; each is compared with `uniform` of the
same seed. A result is a line, written as it comes: a killed comparison is taken up where it was.

One thread a process; two worlds can run beside each other on two cores.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import torch

from andread.curriculum.batches import Curriculum, validation_indices
from andread.curriculum.prepare import prepare
from andread.curriculum.tokens import SourceTokens, open_source
from andread.engine import environment
from andread.engine.flat import FlatEngine
from andread.engine.optimizer import learning_rate
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import BanditSettings, Policy
from andread.rundir.run_toml import settings_from
from andread.rundir.settings import Settings
from andrectl.template import quoted
from tests.bench.worlds import WORLDS, World

POLICIES: Final = {
    "uniform": Policy(),
    "proportional": Policy(algorithm="proportional"),
    "ucb": Policy(algorithm="ucb"),
    "uniform-4": Policy(max_epochs=4.0),
    "ucb-1": Policy(algorithm="ucb", bandit=BanditSettings(temperature=1.0)),
    "ucb-0.5": Policy(algorithm="ucb", bandit=BanditSettings(temperature=0.5)),
}
"""`ucb` has the defaults; `ucb-T` another temperature; `uniform-E` a limit of epochs."""

DEFAULT: Final = ("uniform", "proportional", "ucb")
WINDOWS: Final = 128

RUN_TOML: Final = """\
run = {{ steps = {steps}, seed = {seed} }}
model = {{ width = 64, heads = 2, layers = 2, context = 64, vocabulary = 512 }}
data = {{ validation = 0.1 }}
engine = {{ device = "cpu", threads = 1 }}

[optimizer]
batch = 32
lr = 3e-3
warmup_steps = {warmup}
decay_steps = {steps}
"""


def settings_of(world: World, seed: int, steps: int) -> Settings:
    """Return the settings of a run: a small model, the recipe of the nano preset."""
    text = RUN_TOML.format(steps=steps, seed=seed, warmup=steps // 15)
    for table in world.sources:
        text += "\n[[source]]\n" + "".join(f"{key} = {quoted(v)}\n" for key, v in table.items())
    return settings_from(tomllib.loads(text))


def train(sources: list[SourceTokens], settings: Settings, policy: Policy) -> dict[str, Any]:
    """Train one run; return the validation losses, and each source's share of the pulls."""
    engine = FlatEngine(settings, torch.device("cpu"), 1)
    seed, context = settings.run.seed, settings.model.context
    batch_size = settings.optimizer.batch
    curriculum = Curriculum(sources, [policy], seed, lambda _: batch_size, context)
    pulls: Counter[str] = Counter()
    begun = time.monotonic()
    for step in range(1, settings.run.steps + 1):
        batch = curriculum.draw(step)
        lr = learning_rate(settings.optimizer, step)
        result = engine.step(batch.windows, step, lr).read()
        pulls.update(curriculum.pulls(batch))
        curriculum.advance(batch, result.losses if result.applied else None)
    losses = {}
    for source in sources:
        if indices := validation_indices(source, seed, WINDOWS):
            windows = np.stack([source.validation.window(index) for index in indices])
            losses[source.name] = statistics.fmean(engine.evaluate(windows))
    total = pulls.total()
    return {
        "losses": losses,
        "shares": {source.name: round(pulls[source.name] / total, 4) for source in sources},
        "epochs": dict(
            zip(curriculum.names, (round(e, 3) for e in curriculum.epochs()), strict=True)
        ),
        "seconds": round(time.monotonic() - begun, 1),
    }


def compare(
    name: str, seeds: Sequence[int], steps: int, policies: list[str], results: Path, done: set[Any]
) -> None:
    """Train whatever is missing of one world; append the results."""
    with tempfile.TemporaryDirectory() as place:
        run = RunDirectory(Path(place))
        world = WORLDS[name](run.path)
        first = settings_of(world, 1, steps)
        environment.configure(first.engine, 1)
        prepare(run, first)
        for seed in seeds:
            settings = settings_of(world, seed, steps)
            context = settings.model.context
            sources = [open_source(run, source, context) for source in settings.source_names()]
            for policy in policies:
                if (name, policy, seed, steps) in done:
                    continue
                outcome = train(sources, settings, POLICIES[policy])
                aimed = [outcome["losses"][target] for target in world.target]
                line = {"world": name, "policy": policy, "seed": seed, "steps": steps}
                line |= {"mean": statistics.fmean(aimed), "worst": max(aimed), **outcome}
                with results.open("ab") as stream:
                    stream.write(orjson.dumps(line) + b"\n")


def read(results: Path) -> list[dict[str, Any]]:
    """Return the results so far."""
    if not results.exists():
        return []
    return [orjson.loads(line) for line in results.read_bytes().splitlines()]


def table(rows: list[dict[str, Any]]) -> str:
    """Return the comparison with uniform, paired by seed, as rows of a table."""
    found = {(row["world"], row["steps"], row["policy"], row["seed"]): row for row in rows}
    lines = []
    for world, steps, policy in sorted({key[:3] for key in found}):
        cells = [world, str(steps), policy]
        runs = [row for key, row in found.items() if key[:3] == (world, steps, policy)]
        pairs = [
            (run, base)
            for run in runs
            if (base := found.get((world, steps, "uniform", run["seed"]))) is not None
        ]
        for measure in ("mean", "worst"):
            cells.append(f"{statistics.fmean(run[measure] for run in runs):.4f}")
            gaps = [run[measure] - base[measure] for run, base in pairs]
            if policy != "uniform" and len(gaps) > 1:
                error = statistics.stdev(gaps) / math.sqrt(len(gaps))
                cells[-1] += f" ({statistics.fmean(gaps):+.4f} ± {error:.4f})"
        cells.append(str(len(runs)))
        shares = {
            name: statistics.fmean(run["shares"][name] for run in runs)
            for name in runs[0]["shares"]
        }
        cells.append(" ".join(f"{name} {share:.3f}" for name, share in shares.items()))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Compare, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--world", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=list(DEFAULT))
    parser.add_argument("--seeds", nargs="+", type=int, default=range(1, 9))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--table", action="store_true", help="print the results so far")
    asked = parser.parse_args()
    if not asked.table:
        rows = read(asked.results)
        done = {(row["world"], row["policy"], row["seed"], row["steps"]) for row in rows}
        for world in asked.world:
            compare(world, asked.seeds, asked.steps, asked.policy, asked.results, done)
    print(table(read(asked.results)))


if __name__ == "__main__":
    main()
