"""The zombie's story with real daemons: a source goes, is named and kept out, and comes back."""

import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from andread.curriculum.prepare import prepare
from andread.rundir import companion, errors
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import BanditSettings, Policy, Warmup, write_policies
from andread.rundir.run_toml import read_settings
from tests.process.harness import (
    RUN_TOML,
    copy_run,
    count,
    entries,
    find,
    last_step,
    running,
    train,
    write_text,
)

NAME = "repo-docstrings"
SOURCE = f'\n[[source]]\nname = "{NAME}"\npaths = ["text/docstrings"]\n'
UCB = Policy(
    algorithm="ucb",
    caps={NAME: 0.5, "topics": 0.8},
    floors={NAME: 0.25, "license": 0.2},
    warmup=Warmup(10, (NAME, "topics")),
    bandit=BanditSettings(temperature=0.5),
)
BATCH = 8


def docstrings(module: ModuleType) -> str:
    """Return the docstrings of a module and of what is public in it."""
    members = [module, *(value for name, value in sorted(vars(module).items()) if name[0] != "_")]
    return "\n\n".join(filter(None, (inspect.getdoc(each) for each in members)))


@pytest.fixture(scope="module")
def thirty(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run after 30 steps on three sources, under ucb."""
    run = RunDirectory(tmp_path_factory.mktemp("zombie"))
    write_text(run.path)
    folder = run.path / "text" / "docstrings"
    folder.mkdir()
    for module in (json, os, re, subprocess, textwrap):
        (folder / f"{module.__name__}.txt").write_text(docstrings(module), encoding="utf-8")
    run.settings.write_text(RUN_TOML.format(steps=30, every=10, keep=100) + SOURCE)
    prepare(run, read_settings(run.settings))
    write_policies(run.policy, [UCB])
    train(run)
    return run


@pytest.fixture
def run(thirty: RunDirectory, tmp_path: Path) -> RunDirectory:
    return copy_run(thirty, tmp_path / "run")


def edit(run: RunDirectory, old: str, new: str) -> None:
    text = run.settings.read_text()
    assert old in text
    run.settings.write_text(text.replace(old, new, 1))


def andrectl(run: RunDirectory, *arguments: str) -> str:
    """Return what a command prints about a stopped run."""
    line = [sys.executable, "-m", "andrectl", *arguments, "--run", str(run.path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (errors.OK, errors.STOPPED), done.stderr
    return done.stdout


def pulls(run: RunDirectory, first: int, last: int = 10**9) -> dict[str, int]:
    """Return the pulls of each source in steps `first` to `last`, by the loss history."""
    total: dict[str, int] = {}
    for entry in entries(run)[first - 1 : last]:
        for name, number in entry["pulls"].items():
            total[name] = total.get(name, 0) + number
    return total


def mixer(run: RunDirectory) -> dict[str, Any]:
    """Return the mixer in the newest companion."""
    state: dict[str, Any] = companion.read(run.companion(last_step(run))).curriculum["mixer"]
    return state


def assert_told(run: RunDirectory, held: dict[str, Any]) -> None:
    """Assert that the zombie is told by status and policy, and counted by neither."""
    text = andrectl(run, "status")
    assert f"zombie arm {NAME}: it has no source" in text and "until the next pivot" in text
    told = json.loads(andrectl(run, "status", "--json"))
    assert [arm["name"] for arm in told["sources"]] == ["topics", "license"]
    assert sum(arm["share"] for arm in told["sources"]) == pytest.approx(1)
    assert told["zombie_arms"] == [{"name": NAME, "pulls": held["pulls"], "weight": held["weight"]}]
    shown = json.loads(andrectl(run, "policy", "--json"))
    assert (shown["ignored"], shown["problem"]) == ([NAME], None)
    assert "zombie: no source" in andrectl(run, "policy")


def test_the_story(run: RunDirectory) -> None:
    held = mixer(run)["arms"][NAME]
    assert held["pulls"] == pulls(run, 1)[NAME] > 40
    assert json.loads(andrectl(run, "status", "--json"))["zombies"] == []

    # The source is taken out of run.toml; the policy names it still, in every place.
    edit(run, SOURCE, "")
    assert_told(run, held)
    edit(run, "steps = 30", "steps = 50")
    train(run)
    zombie, ignored = find(run, "zombie", name=NAME), find(run, "ignored", name=NAME)
    assert zombie is not None and ignored is not None
    assert (zombie["pulls"], zombie["weight"]) == (held["pulls"], held["weight"])
    assert ignored["policy"] == UCB.id

    # No pull, no count; the history that it made stays.
    assert set(pulls(run, 31)) == {"topics", "license"}
    assert sum(pulls(run, 31).values()) == 20 * BATCH
    assert pulls(run, 1, 30)[NAME] == held["pulls"]
    state = mixer(run)
    assert set(state["arms"]) == {"topics", "license"} and state["policy"] == UCB.id
    assert state["arms"]["topics"]["pulls"] == pulls(run, 1)["topics"]
    for shares in state["probabilities"]:
        assert set(shares) == {"topics", "license"}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-12)
        assert shares["topics"] <= 0.8 and shares["license"] >= 0.2
    view = json.loads(run.state.read_bytes())
    assert view["zombies"] == {NAME: {"pulls": held["pulls"], "weight": held["weight"]}}
    assert set(view["arms"]) == {"topics", "license"}
    assert_told(run, held)

    # Another restart, and the record of it stays.
    edit(run, "steps = 50", "steps = 60")
    train(run)
    assert count(run, "zombie", name=NAME) == 2
    assert_told(run, held)

    # The source comes back: it starts fresh, and is no zombie any more.
    run.settings.write_text(run.settings.read_text() + SOURCE)
    edit(run, "steps = 60", "steps = 80")
    train(run)
    assert find(run, "new_source", name=NAME) is not None
    assert count(run, "zombie") == count(run, "ignored") == 2
    again = mixer(run)["arms"][NAME]
    assert again["pulls"] == pulls(run, 61)[NAME] < pulls(run, 1)[NAME]
    assert mixer(run)["zombies"] == []
    told = json.loads(andrectl(run, "status", "--json"))
    assert told["zombies"] == [] and len(told["sources"]) == 3
    assert "zombie" not in andrectl(run, "status")


def test_a_pivot_clears_the_record(run: RunDirectory) -> None:
    edit(run, SOURCE, "")
    pivoted = Policy(begins_after=30, algorithm="ucb", floors={"license": 0.3})
    write_policies(run.policy, [UCB, pivoted])
    assert json.loads(andrectl(run, "status", "--json"))["zombies"] == []
    edit(run, "steps = 30", "steps = 40")
    train(run)
    assert count(run, "zombie") == count(run, "ignored") == 0
    state = mixer(run)
    assert state["zombies"] == [] and state["policy"] == pivoted.id
    assert sum(arm["pulls"] for arm in state["arms"].values()) == 10 * BATCH
    assert "zombie" not in andrectl(run, "status")


def test_what_the_living_cannot_meet_is_refused_with_the_sums(run: RunDirectory) -> None:
    before = run.history.read_bytes()
    edit(run, SOURCE, "")
    edit(run, '\n[[source]]\nname = "license"\npaths = ["text/license"]\n', "")
    edit(run, "steps = 30", "steps = 40")
    said = train(run, code=errors.CONFIG)
    assert f"names license, {NAME}, no longer a source" in said
    assert "the caps sum to 0.8, less than 1" in said and "pivot" in said
    assert run.history.read_bytes() == before
    shown = json.loads(andrectl(run, "policy", "--json"))
    assert "the caps sum to 0.8" in shown["problem"]


def test_a_policy_that_names_an_unknown_source_begins_no_run(
    prepared: RunDirectory, tmp_path: Path
) -> None:
    run = copy_run(prepared, tmp_path / "new")
    write_policies(run.policy, [Policy(caps={"topic": 0.5})])
    assert 'unknown source \\"topic\\"' in train(run, code=errors.CONFIG)


def test_a_zombie_is_on_record_from_the_start_on(run: RunDirectory) -> None:
    edit(run, SOURCE, "")
    edit(run, "steps = 30", "steps = 1000")
    with running(run) as daemon:
        started = count(run, "started")
        daemon.until(lambda: count(run, "started") > started)
        daemon.kill()
    view = json.loads(run.state.read_bytes())
    assert set(view["zombies"]) == {NAME} and set(view["arms"]) == {"topics", "license"}
