"""Each call of each piece of work made to fail, one after the other, until none is left to fail.

Once and from then on; with an error, half of the bytes, or the end of the process. What went
through untouched tells that all its calls have been tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from andread.rundir import disk
from andread.rundir.errors import AndreadError, from_os_error
from andread.rundir.layout import RunDirectory
from tests.durability.cuts import copy_of, old_run
from tests.durability.judge import Acknowledged, violations
from tests.durability.layer import Fault, Faulty
from tests.durability.life import Life, new_run

VARIANTS = (
    Fault("EIO", 0),
    Fault("EIO", 0, lasting=True),
    Fault("EINTR", 0),
    Fault("ENOSPC", 0, only=disk.WRITING),
    Fault("ENOSPC", 0, lasting=True, only=disk.WRITING),
    Fault("EROFS", 0, lasting=True, only=disk.WRITING),
    Fault("short", 0),
    Fault("short", 0, lasting=True),
    Fault("die", 0),
)


def start(life: Life) -> None:
    life.begin()


def append(life: Life) -> None:
    for _ in range(3):
        life.train()


def checkpoint(life: Life) -> None:
    life.train()
    life.save()


def prune(life: Life) -> None:
    for _ in range(3):
        life.train()
        life.save()


def snapshot(life: Life) -> None:
    life.train()
    life.snapshot(1)


def pivot(life: Life) -> None:
    life.train()
    life.pivot(0.25)


def view(life: Life) -> None:
    life.view_again()


Work = Callable[[Life], None]
IN_A_LIFE = (append, checkpoint, prune, snapshot, pivot, view)


def cases(variant: Fault) -> Iterator[Fault]:
    for number in range(1, 2000):
        yield Fault(variant.kind, number, variant.lasting, variant.only)


def attempt(run: RunDirectory, work: Work, fault: Fault) -> tuple[bool, list[str]]:
    """Do `work` with `fault` in it, then without; return whether it was met, and what is wrong."""
    told, faulty, found = Acknowledged(), Faulty(fault), []
    life = Life(run, told)
    with life:
        if work is not start:
            life.begin()
        done = False
        try:
            with faulty.active():
                work(life)
                done = True
        except (AndreadError, OSError) as error:
            known = error if isinstance(error, AndreadError) else from_os_error(error, "starting")
            if work is not start:
                found.append(f"{known.message} escapes")
            elif known.exit_code not in (66, 73, 74) or not known.hint:
                found.append(f"code {known.exit_code}: {known.message}")
        if done and fault.kind == "short" and life.troubles:
            found.append(f"a short call is no failure: {life.troubles}")
        if done and work is not start:  # the disk is well again: the next boundary heals
            life.train()
            if not life.save():
                found.append(f"it does not heal: {life.troubles}")
    return faulty.met, [f"{fault}, {faulty.where}: {what}" for what in found]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda f: f.kind + "-on" * f.lasting)
@pytest.mark.parametrize("work", (start, *IN_A_LIFE), ids=lambda work: work.__name__)
def test_every_call_in_turn(memory: Path, tally, work: Work, variant: Fault) -> None:
    tried, found = 0, []
    for aged in (True, False) if work is start else (True,):
        base = old_run(memory / "old") if aged else new_run(RunDirectory(memory / "new"))
        for fault in cases(variant):
            copy = copy_of(base, memory / "copy")
            met, wrong = attempt(copy, work, fault)
            found += wrong
            acknowledged = Acknowledged()
            if aged:
                acknowledged(*("checkpoint", max(base.checkpoint_steps())))
            found += [f"{fault}: {what}" for what in violations(copy, acknowledged)]
            if not met:
                break
            tried += 1
    tally("faults tried", tried)
    tally("violations", len(found))
    assert not found, found[:8]
    assert tried >= 3
