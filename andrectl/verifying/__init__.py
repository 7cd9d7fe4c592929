"""Proving that a run directory can be resumed, before that is needed: the checks of `verify`.

    evidence     what several checks look at, read once
    directory    lock, layout, pivot in flight, disk
    checkpoints  headers, companions, hashes, and which one a start would take
    record       the loss history and what is vouched for, events, samples, state
    forks        where the run comes from, and what was forked off it
    curriculum   settings, policies, archives, zombies, tokens, tokenizer
    replay       steps computed again in a scratch copy

Nothing here writes into the run or takes its locks, and all of it may look while the run trains:
what retention takes away meanwhile is no fault.
"""

from __future__ import annotations

from andread.rundir.layout import RunDirectory
from andrectl.checks import Check
from andrectl.verifying import checkpoints, curriculum, directory, forks, record
from andrectl.verifying.evidence import Evidence

_LOOKS = {
    "lock": directory.held,
    "layout": directory.layout,
    "settings": curriculum.settings,
    "headers": checkpoints.headers,
    "companions": checkpoints.companions,
    "hashes": checkpoints.hashes,
    "history": record.steps,
    "vouched": record.vouched,
    "policies": curriculum.policies,
    "archives": curriculum.archives,
    "lineage": forks.lineage,
    "forks": forks.forks,
    "pivot": directory.pivot_in_flight,
    "zombies": curriculum.zombies,
    "tokens": curriculum.tokens,
    "tokenizer": curriculum.tokenizer,
    "samples": record.samples_of_audits,
    "state": record.state,
    "events": record.events_told,
    "disk": directory.disk,
    "resume": checkpoints.resume,
}


def checks(run: RunDirectory, deep: bool) -> list[Check]:
    """Return every check of `run`, in order; `deep` reads every byte."""
    evidence = Evidence(run, deep)
    return [Check(name, lambda look=look: look(evidence)) for name, look in _LOOKS.items()]  # type: ignore[misc]
