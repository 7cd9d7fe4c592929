"""The comparison of policies on real text still runs, and pairs its figures by seed."""

from pathlib import Path

import pytest
import torch

from andread.curriculum.prepare import prepare
from andread.curriculum.tokens import open_source
from andread.rundir.layout import RunDirectory
from tests.bench.bandit_comparison import POLICIES, settings_of, table, train
from tests.bench.worlds import World


@pytest.fixture
def one_thread() -> None:
    """Leave torch as other tests expect it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_two_steps_of_each_policy(tmp_path: Path, one_thread: None) -> None:
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    sources = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        for place in range(20):
            (tmp_path / name / f"{place:02}.txt").write_text(text[place * 500 :][:2000])
        sources.append({"name": name, "paths": [name]})
    run, settings = RunDirectory(tmp_path), settings_of(World(tuple(sources), ("first",)), 1, 2)
    prepare(run, settings)
    opened = [open_source(run, name, 64) for name in ("first", "second")]
    rows = []
    for policy in ("uniform", "ucb"):
        outcome = train(opened, settings, POLICIES[policy])
        assert 5 < outcome["losses"]["first"] < 7
        assert sum(outcome["shares"].values()) == pytest.approx(1, abs=1e-3)
        rows += [
            {"world": "w", "policy": policy, "seed": seed, "steps": 2, "mean": mean, "worst": 6.0}
            | outcome
            for seed, mean in ((1, 5.0), (2, 6.0 if policy == "uniform" else 6.2))
        ]
    assert "(+0.1000 ± 0.1000)" in table(rows)
