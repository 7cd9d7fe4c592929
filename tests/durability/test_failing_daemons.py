"""The real daemon, with a call of its disk failing or the process killed there, and what follows.

Fewer than in test_failing_calls.py, and spread over a whole life: the start, the steps, the
checkpoints with their pruning, the audits, the end.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from andread.rundir import disk, errors
from andread.rundir.layout import RunDirectory
from tests.durability.conftest import Tally
from tests.durability.cuts import copy_of
from tests.durability.forked import lived, unsound
from tests.durability.layer import Fault
from tests.durability.zygote import Zygote

VARIANTS = {
    "kill": (Fault("kill", 0, only=disk.WRITING), 3),
    "EIO": (Fault("EIO", 0), 19),
    "EIO-writing": (Fault("EIO", 0, only=disk.WRITING), 4),
    "ENOSPC-on": (Fault("ENOSPC", 0, lasting=True, only=disk.WRITING), 7),
    "EROFS-on": (Fault("EROFS", 0, lasting=True, only=disk.WRITING), 11),
    "short-on": (Fault("short", 0, lasting=True), 29),
}
"""Each with the distance from one place to the next; every one of them is tried on the level of
the run directory."""


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("aged", [False, True], ids=["new", "old"])
def test_a_life_with_a_fault_in_it(
    daemons: Zygote,
    short_run: RunDirectory,
    short_lived: RunDirectory,
    half_lived: RunDirectory,
    memory: Path,
    tally: Tally,
    name: str,
    aged: bool,
) -> None:
    variant, distance = VARIANTS[name]
    found: list[str] = []
    tried = 0
    for number in itertools.count(1 + aged * (distance // 2), distance):
        run = copy_of(half_lived if aged else short_run, memory / "run")
        fault = dataclasses.asdict(dataclasses.replace(variant, number=number))
        code, said = lived(daemons, run, memory / "log", fault=fault)
        wrong, met = judged(variant, code, said), "fault met: " in said
        wrong += unsound(run, short_lived, whole=False) if run.history.exists() else []
        again, more = lived(daemons, run, memory / "log-2")
        wrong += [f"the next life ends with {again}: {more[-500:]}"] if again else []
        wrong += unsound(run, short_lived)
        found += [f"{name} at {number}, {place(said)}, ends with {code}: {one}" for one in wrong]
        if not met:
            assert code == 0, said
            break
        tried += 1
    tally("faults tried", tried)
    tally("violations", len(found))
    assert not found, found[:5]
    assert tried >= 3


def place(said: str) -> str:
    return next((line for line in said.splitlines() if line.startswith("fault met")), "")


def judged(fault: Fault, code: int, said: str) -> list[str]:
    """Return what is wrong with how a daemon ended, and with what it said."""
    if fault.kind == "kill":
        return [] if code in (0, -9) else [f"code {code}"]
    wrong = ["a traceback"] if "Traceback" in said else []
    if code not in (errors.OK, errors.IO, errors.LAST_WRITE_FAILED):
        wrong.append(f"code {code}: {said[-600:]}")
    if fault.kind == "short" and code:
        wrong.append("a short call is no failure")
    if code in (errors.IO, errors.LAST_WRITE_FAILED) and not any(
        hint in said for hint in ("check the disk", "free ", "read-only", "the path", "under that")
    ):
        wrong.append(f"no hint: {said[-400:]}")
    return wrong
