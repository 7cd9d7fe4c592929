"""Lives on tape, and the judgement of what a cut at any place of a tape may leave."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from andread.rundir import disk
from andread.rundir.layout import RunDirectory
from tests.durability import mutants
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


def history_put_back(life: Life) -> None:
    """Go on with a history that somebody removed: what it was is whole again, and durable."""
    life.begin()
    life.train()
    life.lose_history()
    for _ in range(2):
        life.train()
        life.save()


SCRIPTS: tuple[Script, ...] = (
    born_and_saved,
    saves_and_prunes,
    snapshots,
    pivots,
)


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


def copy_of(run: RunDirectory, directory: Path) -> RunDirectory:
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(run.path, directory)
    return RunDirectory(directory)


@dataclass
class Verdict:
    """How many states were judged, and what was wrong with them."""

    violations: list[str] = field(default_factory=list)
    seen: set[tuple[bytes, str]] = field(default_factory=set)
    """The states, each with what was vouched for: one is judged once."""

    @property
    def states(self) -> int:
        return len(self.seen)


def recorded(run: RunDirectory, script: Script, mutant: str = "") -> Tape:
    """Live through `script` in `run` and return the tape of it."""
    tape = Tape(run.path)
    with tape.running(), mutants.in_force(mutant), Life(run, tape.mark) as life:
        script(life)
    return tape


def killed(directory: Path, script: Script, mutant: str = "") -> Iterator[tuple[Tape, int]]:
    """Yield tapes of lives that died at each call that writes and of the start after that.

    With each tape comes the place where the start begins.
    """
    run = old_run(directory / "old")
    for number in range(1, 1000):
        copy = copy_of(run, directory / "copy")
        tape, faulty = Tape(copy.path), Faulty(Fault("die", number, only=disk.WRITING))
        with tape.running(), mutants.in_force(mutant):
            with faulty.active(), Life(copy, tape.mark) as life:
                script(life)
            first = len(tape.operations)
            if not faulty.met:
                return
            with Life(copy, tape.mark) as life:
                life.begin()
                life.settle()
        yield tape, first


def unsynced(directory: Path, script: Script, mutant: str = "") -> Iterator[tuple[Tape, int]]:
    """Yield tapes of lives in which each fsync fails in turn, and of what comes after it.

    With each tape comes the place of the failure.
    """
    run = old_run(directory / "old")
    for number in range(1, 1000):
        copy = copy_of(run, directory / "copy")
        tape = Tape(copy.path, failing=number)
        with tape.running(), mutants.in_force(mutant):
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
            return
        yield tape, next(i for i, o in enumerate(tape.operations) if o[0] == "lost")


def judged(
    tape: Tape,
    scratch: Path,
    first: int = 0,
    samples: int = 3,
    at_marks: bool = False,
    enough: int = 1000,
    verdict: Verdict | None = None,
) -> Verdict:
    """Judge what a cut at any place of a tape may leave, up to `enough` violations.

    `verdict`: that on other tapes, to be gone on with.
    `first`: the place that the cuts begin at. `at_marks`: only right after something was vouched
    for, and at the end. `samples`: states by chance at each place.
    """
    verdict = verdict or Verdict()
    rng, run = random.Random(SEED), RunDirectory(scratch)
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
            if key in verdict.seen:
                continue
            verdict.seen.add(key)
            build(tree, scratch)
            where = f"cut after {index} {str(operation[:4])[:80]}"
            verdict.violations += [f"{where}: {what}" for what in violations(run, told.copy())]
            if len(verdict.violations) >= enough:
                return verdict
    return verdict
