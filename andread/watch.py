"""The watch on the loss: steps that could not be applied, and spikes.

A loss scaler's ordinary overflow is counted apart. After K consecutive non-finite steps the run
halts; a loss above `spike_factor` times its moving average is a spike, told, and on request a
reason to halt.
"""

from __future__ import annotations

import math
from typing import Any, Final

from andread.engine.interface import StepResult
from andread.rundir.errors import DivergedError
from andread.rundir.settings import FaultSettings

_HORIZON: Final = 50


class LossWatch:
    """Counts what went wrong; its `counters` go into every companion."""

    def __init__(self, settings: FaultSettings, counters: dict[str, Any]) -> None:
        self._settings = settings
        self.skipped = int(counters.get("skipped", 0))
        self.overflowed = int(counters.get("overflowed", 0))
        self.spikes = int(counters.get("spikes", 0))
        self.consecutive = int(counters.get("consecutive", 0))
        self.average: float | None = counters.get("average")
        self._spiked = False

    @property
    def counters(self) -> dict[str, Any]:
        """Return the state for a companion."""
        return {
            "skipped": self.skipped,
            "overflowed": self.overflowed,
            "spikes": self.spikes,
            "consecutive": self.consecutive,
            "average": self.average,
        }

    def observe(self, step: int, result: StepResult) -> list[dict[str, Any]]:
        """Take in a step and return the events that it is worth; `verdict` follows."""
        if result.overflow:
            self.overflowed += 1
            return [{"event": "skipped", "step": step, "why": "overflow"}]
        if not result.applied:
            self.skipped += 1
            self.consecutive += 1
            return [{"event": "skipped", "step": step, "why": "nonfinite"}]
        self.consecutive = 0
        average = self.average
        events = []
        self._spiked = average is not None and result.loss > self._settings.spike_factor * average
        if self._spiked:
            self.spikes += 1
            events.append({"event": "spike", "step": step, "loss": result.loss, "average": average})
        if average is None:
            self.average = result.loss
        else:
            self.average = average + (result.loss - average) / _HORIZON
        return events

    def verdict(self, step: int) -> None:
        """Raise `DivergedError` if the run must halt after `step`, the last one observed."""
        if self.consecutive >= self._settings.halt_after_nonfinite:
            raise DivergedError(
                f"{self.consecutive} consecutive steps up to {step} had a non-finite loss or "
                "gradient; none of them was applied",
                "lower optimizer.lr by a pivot, or import an earlier checkpoint into a new run",
            )
        if self._settings.halt_on_spike and self._spiked:
            raise DivergedError(
                f"the loss spiked at step {step} and [faults] halt_on_spike is set",
                "go on by unsetting it, or lower optimizer.lr by a pivot",
            )


def entry_loss(result: StepResult) -> tuple[float | None, float | None, str | None]:
    """Return (loss, gradient norm, skipped) as the history records them: JSON has no NaN."""
    norm = result.grad_norm if math.isfinite(result.grad_norm) else None
    if result.applied:
        return result.loss, norm, None
    if result.overflow:
        return result.loss, norm, "overflow"
    return None, norm, "nonfinite"
