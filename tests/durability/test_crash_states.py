"""Every state that a power cut may leave, and a run that goes on from each of them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from andread.rundir import disk
from andread.rundir.layout import RunDirectory
from tests.durability.judge import Acknowledged, violations
from tests.durability.layer import Fault, Faulty
from tests.durability.life import Life, new_run
from tests.durability.model import Disk, build, digest
from tests.durability.tape import Tape

Script = Callable[[Life], None]
SEED = 20


def born_and_saved(life: Life) -> None:
    life.begin()
    for _ in range(3):
        life.train()
    life.save()


def saves_and_prunes(life: Life) -> None:
    life.begin()
    for _ in range(4):
        life.train()
        life.save()
        life.view_again()


def snapshots(life: Life) -> None:
    life.begin()
    for number in range(2):
        life.train()
        life.snapshot(number)
        life.train()
        life.save()


def pivots(life: Life) -> None:
    life.begin()
    for number in range(2):
        life.train()
        life.pivot(0.5 + number / 10)
        life.train()
    life.save()


def history_is_put_back(life: Life) -> None:
    life.begin()
    life.train()
    life.run.history.rename(life.run.path / "moved")  # by somebody, past the layer
    (life.run.path / "moved").unlink()
    life.history.put_back()
    life.train()
    life.save()


SCRIPTS = (born_and_saved, saves_and_prunes, snapshots, pivots)


def old_run(directory: Path) -> RunDirectory:
    """Make a run that has lived: checkpoints, history, a pivot, a pin, unsaved steps."""
    run = new_run(RunDirectory(directory))
    with Life(run, Acknowledged()) as life:
        pivots(life)
        life.train()
        life.snapshot(9)
        life.train()
        life.train()
    return run


@pytest.fixture
def place(memory: Path) -> Path:
    """A place in memory for many small directories."""
    return memory


def record(run: RunDirectory, script: Script, failing: int = 0) -> Tape:
    """Live through `script` in `run` and return the tape of it."""
    tape = Tape(run.path, failing)
    with tape.running(), Life(run, tape.mark) as life:
        script(life)
    return tape


def judged(
    tape: Tape, scratch: Path, first: int = 0, samples: int = 3, at_marks: bool = False
) -> tuple[int, list[str]]:
    """Judge what a cut at any place of a tape may leave; return the states and the violations.

    `first`: the operation that the cuts begin at. `at_marks`: only right after something was
    vouched for, and at the end.
    """
    seen: set[tuple[bytes, str]] = set()
    found: list[str] = []
    rng = random.Random(SEED)
    run = RunDirectory(scratch)
    model, told = Disk(tape), Acknowledged()
    for index, operation in enumerate([*tape.operations, ("end",)]):
        if operation[0] == "mark":
            told(*operation[1:])
        elif operation[0] != "end":
            model.play(operation)
        if index < first or (at_marks and operation[0] not in ("mark", "end")):
            continue
        for tree in model.states(rng, samples):
            key = (digest(tree), repr(told))
            if key in seen:
                continue
            seen.add(key)
            build(tree, scratch)
            for fault in violations(run, told.copy()):
                found.append(f"cut after {index} {operation[:4]!s:.80}: {fault}")
    return len(seen), found


@pytest.mark.parametrize("aged", [False, True], ids=["new", "old"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_any_cut_of_a_life(place: Path, tally, script: Script, aged: bool) -> None:
    run = old_run(place / "run") if aged else new_run(RunDirectory(place / "run"))
    states, found = judged(record(run, script), place / "cut")
    tally("crash states", states)
    tally("violations", len(found))
    assert not found, found[:5]
    assert states > 100


def killed_then_cut(directory: Path, script: Script) -> Iterable[tuple[Tape, int]]:
    """Yield tapes of lives that died at each call that writes, and of the start after that."""
    run = old_run(directory / "old")
    for number in range(1, 1000):
        copy = RunDirectory(directory / "copy")
        shutil.rmtree(copy.path, ignore_errors=True)
        shutil.copytree(run.path, copy.path)
        tape = Tape(copy.path)
        fault = Faulty(Fault("die", number, only=disk.WRITING))
        with tape.running():
            with fault.active(), Life(copy, tape.mark) as life:
                script(life)
            first = len(tape.operations)
            if fault.met:
                with Life(copy, tape.mark) as life:
                    life.begin()
                    life.settle()
        if not fault.met:
            return
        yield tape, first


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_cut_after_a_kill_and_a_start(place: Path, tally, script: Script) -> None:
    """What a dead process renamed and did not sync is no promise of the next one, until it is."""
    total, found = 0, []
    for tape, first in killed_then_cut(place, script):
        states, faults = judged(tape, place / "cut", first, 0, at_marks=True)
        total, found = total + states, found + faults
    tally("crash states", total)
    tally("violations", len(found))
    assert not found, found[:5]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_failed_fsync_is_never_believed_later(place: Path, tally, script: Script) -> None:
    """The pages that it should have written are lost; whatever is acknowledged later is there."""
    old = old_run(place / "old")
    total, found = 0, []
    for number in range(1, 1000):
        copy = RunDirectory(place / "copy")
        shutil.rmtree(copy.path, ignore_errors=True)
        shutil.copytree(old.path, copy.path)
        tape = Tape(copy.path, failing=number)
        with tape.running():
            try:
                with Life(copy, tape.mark) as life:
                    script(life)
                    life.train()
                    life.save()
            except OSError:  # that start failed, another one comes
                with Life(copy, tape.mark) as life:
                    life.begin()
                    life.train()
                    life.save()
        if tape.syncs < number:
            break
        place_of_loss = next(i for i, o in enumerate(tape.operations) if o[0] == "lost")
        states, faults = judged(tape, place / "cut", place_of_loss, 0, at_marks=True)
        total, found = total + states, found + faults
    tally("crash states", total)
    tally("violations", len(found))
    assert not found, found[:5]
