"""What steps and checkpoints of the run cost, and how often a checkpoint then pays best.

Young and Daly: with a stall C for each checkpoint and failures once in M, a period T costs
C / T + T / (2 M) of the time; T = √(2 C M) costs the least.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from andread.rundir import events, history
from andread.rundir.layout import RunDirectory
from andrectl import checks, loose, render
from andrectl.checks import Outcome

if TYPE_CHECKING:
    from andrectl.doctor.patient import Patient

_STEPS: Final = 200
_EVENTS: Final = 1 << 20
"""Bytes of .events.json that are read, from its end."""
_RECENT: Final = 20
WASTE: Final = 0.01
"""The share of the time that a cadence may cost beyond the best one."""


@dataclass(frozen=True)
class Pace:
    """Seconds, of the latest steps and checkpoints; None before there are any."""

    step: float | None = None
    """The usual step."""
    slowest: float | None = None
    """The longest from one record to the next: a step with the checkpoint and audit before it."""
    write: float | None = None
    """The slowest checkpoint, until it was durable."""
    stall: float | None = None
    """What training usually waits for a checkpoint."""


def measured(run: RunDirectory) -> Pace:
    """Return the pace that history and events of `run` tell."""
    start = max(0, loose.file_size(run.events) - _EVENTS)
    said = list(events.read(run.events, start))
    begun = [event["t"] for event in said if event["event"] == "started"]
    times = [loose.number(entry.get("t")) for entry in history.tail(run.history, _STEPS)]
    gaps = [
        after - before
        for before, after in pairwise(times)
        if before is not None
        and after is not None
        and after >= before
        and not any(before < start <= after for start in begun)  # between two lives nobody trains
    ]
    written = [event for event in said if event["event"] == "checkpoint"][-_RECENT:]
    writes = [x for event in written if (x := loose.number(event.get("seconds"))) is not None]
    stalls = [
        x
        for event in written
        if (x := loose.number(event.get("stalled", event.get("seconds")))) is not None
    ]
    return Pace(
        step=statistics.median(gaps) if gaps else None,
        slowest=max(gaps, default=None),
        write=max(writes, default=None),
        stall=statistics.median(stalls) if stalls else None,
    )


def best_period(stall: float, mtbf: float) -> float:
    """Return the seconds between checkpoints that cost the least."""
    return math.sqrt(2 * stall * mtbf)


def lost(period: float, stall: float, mtbf: float) -> float:
    """Return the share of the time that checkpoints once in `period` cost, failures included."""
    return stall / period + period / (2 * mtbf)


def look_at_cadence(patient: Patient) -> Outcome:
    """Compare the configured cadence with the one that costs the least."""
    step = patient.pace.step
    stall = patient.pace.stall if patient.pace.stall is not None else patient.write
    if patient.settings is None or not step or not stall:
        return checks.skipped("no step or checkpoint of this run is measured yet")
    every = patient.settings.run.checkpoint_every
    period, best = every * step, max(step, best_period(stall, patient.mtbf))
    steps = max(1, round(best / step))
    now, least = lost(period, stall, patient.mtbf), lost(best, stall, patient.mtbf)
    assumed = f"one failure in {render.duration(patient.mtbf)}, as assumed by --mtbf"
    detail = (
        f"every {render.count(every, 'step')} ({render.duration(period)}) costs {now:.2%} of the "
        f"time; the least, {least:.2%}, would be every {render.count(steps, 'step')} "
        f"({render.duration(best)}), with {render.duration(stall)} a checkpoint and {assumed}"
    )
    if now - least > WASTE:
        return checks.warning(detail, f"set [run] checkpoint_every nearer to {steps:,} in run.toml")
    return checks.ok(detail)
