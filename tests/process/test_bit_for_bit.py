"""A run is the same bits whether it was stopped zero, one or many times."""

import hashlib
import random
import signal
from pathlib import Path

import pytest

from andread.rundir.layout import RunDirectory
from tests.process.harness import (
    copy_run,
    count,
    entries,
    find,
    last_step,
    make_run,
    running,
    train,
)

STEPS = 300


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return make_run(tmp_path_factory.mktemp("long"), steps=STEPS, every=50)


@pytest.fixture(scope="module")
def unbroken(long_run: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = copy_run(long_run, tmp_path_factory.mktemp("unbroken") / "run")
    train(run)
    return run


def digest(run: RunDirectory, step: int) -> str:
    return hashlib.sha256(run.checkpoint(step).read_bytes()).hexdigest()


@pytest.mark.parametrize("seed", [1, 2])
def test_stops_at_random_steps_change_no_bit(
    long_run: RunDirectory, unbroken: RunDirectory, tmp_path: Path, seed: int
) -> None:
    run = copy_run(long_run, tmp_path / "run")
    dice = random.Random(seed)
    stops = sorted(dice.sample(range(5, STEPS - 20), 4))
    kinds = [signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL]
    dice.shuffle(kinds)
    for step, kind in zip(stops, kinds, strict=True):
        with running(run) as daemon:
            daemon.until_step(step)
            daemon.send(signal.SIGUSR1)
            if dice.random() < 0.5:
                daemon.until_step(step + 3)
            daemon.send(kind)
            code = daemon.wait()
        if kind == signal.SIGTERM:
            assert code == 0, daemon.stderr()
            assert run.checkpoint(last_step(run)).exists()
        else:
            assert code == -signal.SIGKILL
    train(run)
    assert digest(run, STEPS) == digest(unbroken, STEPS)
    assert entries(run) == entries(unbroken)
    assert [entry["step"] for entry in entries(run)] == list(range(1, STEPS + 1))
    assert count(run, "replay", verdict="exact") == count(run, "replay")
    assert count(run, "rejected") == 0


def test_two_unbroken_runs_are_the_same_bits(
    long_run: RunDirectory, unbroken: RunDirectory, tmp_path: Path
) -> None:
    run = copy_run(long_run, tmp_path / "run")
    train(run)
    assert digest(run, STEPS) == digest(unbroken, STEPS)


def test_another_seed_gives_other_bits(
    long_run: RunDirectory, unbroken: RunDirectory, tmp_path: Path
) -> None:
    run = copy_run(long_run, tmp_path / "run")
    text = run.settings.read_text()
    run.settings.write_text(text.replace("seed = 7", "seed = 8"))
    train(run)
    assert digest(run, STEPS) != digest(unbroken, STEPS)


def test_a_kill_replays_exactly_and_records_nothing_twice(
    long_run: RunDirectory, tmp_path: Path
) -> None:
    run = copy_run(long_run, tmp_path / "run")
    with running(run) as daemon:
        daemon.until_step(77)
        daemon.kill()
    recorded, newest = last_step(run), run.checkpoint_steps()[-1]
    assert recorded >= 77
    with running(run) as daemon:
        verdict = daemon.until_event("replay")
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == 0
    assert verdict["verdict"] == "exact"
    assert (verdict["from"], verdict["to"]) == (newest + 1, recorded)
    steps = [entry["step"] for entry in entries(run)]
    assert steps == list(range(1, len(steps) + 1))


def test_raising_steps_goes_on_from_the_end(finished: RunDirectory, tmp_path: Path) -> None:
    run = copy_run(finished, tmp_path / "run")
    text = run.settings.read_text()
    run.settings.write_text(text.replace("steps = 60", "steps = 70", 1))
    train(run)
    assert last_step(run) == 70
    started = find(run, "started")
    assert started is not None and started["step"] == 60
    assert {entry["lr"] for entry in entries(run)[60:]} == {0.1 * 3e-3}


def test_audits_disturb_nothing(
    finished: RunDirectory, prepared: RunDirectory, tmp_path: Path
) -> None:
    run = copy_run(prepared, tmp_path / "run")
    text = run.settings.read_text()
    run.settings.write_text(text.replace("sample_every = 10", "sample_every = 1000"))
    train(run)
    assert count(run, "audit") == 0
    assert count(finished, "audit") == 6
    assert digest(run, 60) == digest(finished, 60)
