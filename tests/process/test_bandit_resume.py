"""With the bandit in play a run is still the same bits, however it was stopped."""

import hashlib
import random
import signal
from pathlib import Path

import pytest

from andread.rundir.layout import RunDirectory
from andread.rundir.policy import BanditSettings, Policy, Warmup, write_policies
from tests.process.harness import copy_run, count, entries, find, last_step, running, train
from tests.process.harness import make_run as make

STEPS = 200
QUICK = BanditSettings(slow=20, fast=5, temperature=0.1, smoothing=0.5)
"""Weights that move far in a few steps, so that a bandit that was not restored shows."""
BEFORE = Policy(
    algorithm="ucb", floors={"license": 0.1}, warmup=Warmup(20, ("topics",)), bandit=QUICK
)
AFTER = Policy(begins_after=90, algorithm="ucb", caps={"topics": 0.7}, bandit=QUICK)


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run under ucb that has not begun: a warm-up, and another policy from step 91 on."""
    run = make(tmp_path_factory.mktemp("bandit"), steps=STEPS, every=40)
    write_policies(run.policy, [BEFORE, AFTER])
    return run


@pytest.fixture(scope="module")
def unbroken(new: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = copy_run(new, tmp_path_factory.mktemp("unbroken") / "run")
    train(run)
    return run


def digest(run: RunDirectory) -> str:
    return hashlib.sha256(run.checkpoint(STEPS).read_bytes()).hexdigest()


def assert_same(run: RunDirectory, unbroken: RunDirectory) -> None:
    assert digest(run) == digest(unbroken)
    assert entries(run) == entries(unbroken)
    assert run.state.read_bytes() == unbroken.state.read_bytes()
    assert count(run, "replay", verdict="exact") == count(run, "replay")


def test_the_bandit_is_in_play(unbroken: RunDirectory) -> None:
    shares = [entry["pulls"].get("topics", 0) / 8 for entry in entries(unbroken)]
    assert set(shares[:20]) == {1.0}
    means = [sum(shares[start : start + 35]) / 35 for start in (20, 55, 92, 127, 162)]
    assert max(means) - min(means) > 0.05, means


@pytest.mark.parametrize("seed", [1, 2])
def test_stops_at_random_steps_change_no_bit(
    new: RunDirectory, unbroken: RunDirectory, tmp_path: Path, seed: int
) -> None:
    run = copy_run(new, tmp_path / "run")
    dice = random.Random(seed)
    kinds = [signal.SIGTERM, signal.SIGKILL, signal.SIGKILL]
    for step, kind in zip(sorted(dice.sample(range(3, STEPS - 20), 3)), kinds, strict=True):
        with running(run) as daemon:
            daemon.until_step(step)
            daemon.send(kind)
            assert daemon.wait() in (0, -signal.SIGKILL), daemon.stderr()
    train(run)
    assert_same(run, unbroken)


@pytest.mark.parametrize("back", [1, 3])
def test_a_fall_back_to_an_older_checkpoint_changes_no_bit(
    new: RunDirectory, unbroken: RunDirectory, tmp_path: Path, back: int
) -> None:
    run = copy_run(new, tmp_path / "run")
    with running(run) as daemon:
        daemon.until_step(133)
        daemon.send(signal.SIGTERM)
        daemon.wait()
    damaged = run.checkpoint_steps()[-back:]
    for step in damaged:
        with run.checkpoint(step).open("r+b") as stream:
            stream.seek(4000)
            stream.write(b"\x01\x02\x03\x04\x05")
    recorded = last_step(run)
    train(run)
    for step in damaged:
        assert find(run, "rejected", step=step) is not None
    replay = find(run, "replay")
    assert replay is not None and (replay["verdict"], replay["to"]) == ("exact", recorded)
    assert_same(run, unbroken)
