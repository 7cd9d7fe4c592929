"""The suite has teeth: the protocol with one thing wrong in it is caught, each time.

By the crash states, where every mutant is; by real power cuts those that a real disk shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durability import mutants
from tests.durability.conftest import Tally
from tests.durability.cuts import (
    Verdict,
    judged,
    killed,
    old_run,
    recorded,
    saves_and_prunes,
    snapshots,
    unsynced,
)
from tests.durability.disks import HOSTILE, loop_disk
from tests.durability.tape import Tape
from tests.durability.test_power_cuts import cut_again_and_again
from tests.durability.zygote import Zygote

SHOWN_BY_CUTS = {
    "no_file_fsync": 40,
    "no_directory_fsync": 150,
    "no_temporary_file": 40,
    "pruned_before_the_sync": 150,
}
"""Those that real power shows, and within how many cuts at most."""


def tapes(mutant: str, memory: Path) -> Iterator[tuple[Tape, int]]:
    """Yield the tapes of the lives in which `mutant` can show."""
    if mutant == "dead_renames_believed":
        yield from killed(memory, snapshots, mutant)
    elif mutant == "fsync_tried_again":
        yield from unsynced(memory, saves_and_prunes, mutant)
    else:
        yield recorded(old_run(memory / "run"), saves_and_prunes, mutant), 0


@pytest.mark.parametrize("mutant", sorted(mutants.ALL))
def test_a_mutant_is_caught_by_the_crash_states(memory: Path, tally: Tally, mutant: str) -> None:
    late = mutant in ("dead_renames_believed", "fsync_tried_again")
    verdict = Verdict()
    for tape, first in tapes(mutant, memory):
        judged(tape, memory / "cut", first, 0 if late else 1, late, enough=1, verdict=verdict)
        if verdict.violations:
            tally("mutants caught")
            return
    pytest.fail(f"{mutant} went through")


@pytest.mark.parametrize("mutant", sorted(SHOWN_BY_CUTS))
def test_a_mutant_is_caught_by_real_cuts(
    light: Zygote, tmp_path: Path, tally: Tally, mutant: str
) -> None:
    left = SHOWN_BY_CUTS[mutant]
    for seed in itertools.count(10):
        with loop_disk(options=HOSTILE) as disk:
            cuts, found, _ = cut_again_and_again(light, disk, tmp_path, min(left, 50), seed, mutant)
        if found:
            return
        left -= cuts
        assert left > 0, f"{mutant} went through {SHOWN_BY_CUTS[mutant]} real cuts"
