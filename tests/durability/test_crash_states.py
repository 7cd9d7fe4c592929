"""Every state that a power cut may leave, and a run that goes on from each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from andread.rundir.layout import RunDirectory
from tests.durability.conftest import Tally
from tests.durability.cuts import (
    SCRIPTS,
    Script,
    Verdict,
    history_put_back,
    judged,
    killed,
    old_run,
    recorded,
    unsynced,
)
from tests.durability.life import new_run

any_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)


def none_violated(verdict: Verdict, tally: Tally, at_least: int) -> None:
    tally("crash states", verdict.states)
    tally("violations", len(verdict.violations))
    assert not verdict.violations, verdict.violations[:5]
    assert verdict.states >= at_least


@pytest.mark.parametrize("aged", [False, True], ids=["new", "old"])
@any_script
def test_any_cut_of_a_life(memory: Path, tally: Tally, script: Script, aged: bool) -> None:
    run = old_run(memory / "run") if aged else new_run(RunDirectory(memory / "run"))
    none_violated(judged(recorded(run, script), memory / "cut"), tally, 100)


def test_a_cut_after_the_history_was_put_back(memory: Path, tally: Tally) -> None:
    tape = recorded(old_run(memory / "run"), history_put_back)
    renamed = [
        i for i, o in enumerate(tape.operations) if o[0] == "rename" and o[3] == ".loss.json"
    ]
    synced = next(i for i, o in enumerate(tape.operations) if i > renamed[-1] and o[0] == "fsync")
    none_violated(judged(tape, memory / "cut", synced), tally, 50)


@any_script
def test_a_cut_after_a_kill_and_a_start(memory: Path, tally: Tally, script: Script) -> None:
    """What a dead process renamed and did not sync is no promise of the next one, until it is."""
    verdict = Verdict()
    for tape, first in killed(memory, script):
        judged(tape, memory / "cut", first, 0, at_marks=True, verdict=verdict)
    none_violated(verdict, tally, 20)


@any_script
def test_a_failed_fsync_is_never_believed_later(memory: Path, tally: Tally, script: Script) -> None:
    """The pages that it should have written are lost; whatever is vouched for later is there."""
    verdict = Verdict()
    for tape, first in unsynced(memory, script):
        judged(tape, memory / "cut", first, 0, at_marks=True, verdict=verdict)
    none_violated(verdict, tally, 20)
