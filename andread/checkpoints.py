"""A checkpoint from the step boundary to its acknowledgement and the pruning of old ones.

A checkpoint that is due is never skipped: one that could not be written is owed, and tried again
at later boundaries, at growing distances, while training goes on and the last good one stays. A
step that has a valid checkpoint is never written again; requests that meet at one boundary share
one file.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from andread.curriculum.batches import Curriculum
from andread.duties import Reporter
from andread.engine.interface import Engine
from andread.rundir import checkpoint, commit, files, requests
from andread.rundir.companion import Companion
from andread.rundir.errors import from_os_error
from andread.rundir.history import LossHistory
from andread.rundir.layout import RunDirectory
from andread.rundir.requests import Request
from andread.rundir.settings import Settings
from andread.watch import LossWatch


@dataclass
class Checkpointer:
    """Writes the checkpoints of one run. `last` is the newest durable one."""

    run: RunDirectory
    settings: Settings
    engine: Engine
    curriculum: Curriculum
    history: LossHistory
    watch: LossWatch
    reporter: Reporter
    data: dict[str, str]
    last: Companion | None

    def __post_init__(self) -> None:
        self._valid = commit.structurally_valid(self.run, self.engine.n_params)
        self._owed: tuple[str, ...] = ()
        self._retry_at = 0
        self._distance = 1

    def owed(self, step: int) -> tuple[str, ...]:
        """Return why a checkpoint that failed earlier is to be tried again at `step`."""
        return self._owed if step >= self._retry_at else ()

    def write(
        self,
        step: int,
        reasons: Sequence[str],
        asked: Sequence[Request],
        steps_per_minute: float | None,
    ) -> bool:
        """Make the state after `step` durable and acknowledge `asked`; False if that failed.

        A failure is reported as an alarm; the requests then stay unserved.
        """
        if self.last is None or self.last.step != step:
            begun = time.monotonic()
            try:
                self.last = self._commit(step, reasons, asked)
            except OSError as error:
                self._fail(step, reasons, error)
                return False
            self._owed, self._distance = (), 1
            self._valid.append(step)
            self.reporter.healed("checkpoint")
            self.view(step)
            self.reporter.event(
                "checkpoint",
                step=step,
                path=self.run.checkpoint(step).name,
                bytes=checkpoint.file_size(self.engine.n_params),
                sha256=self.last.sha256,
                reasons=list(reasons),
                seconds=round(time.monotonic() - begun, 3),
                steps_per_minute=steps_per_minute,
            )
        for request in asked:
            self._acknowledge(request, self.last)
        self._prune()
        return True

    def _commit(self, step: int, reasons: Sequence[str], asked: Sequence[Request]) -> Companion:
        """Freeze the boundary after `step` and commit it."""
        prefix = self.history.prefix
        boundary: dict[str, Any] = {
            "step": step,
            "n_params": self.engine.n_params,
            "history_length": prefix.length,
            "history_sha256": prefix.sha256,
            "policy": self.curriculum.policy.id,
            "reasons": tuple(reasons),
            "requests": tuple(request.id for request in asked),
            "curriculum": self.curriculum.record(),
            "scaler": self.engine.scaler_state(),
            "counters": self.watch.counters,
            "trajectory": self.settings.trajectory(),
            "data": self.data,
            "environment": self.engine.environment,
            "t": round(time.time(), 3),
        }
        image = self.engine.snapshot(step).image()
        return commit.commit(
            self.run,
            image,
            self.history,
            lambda digest: Companion(sha256=digest, **boundary),
            self.reporter.beat,
        )

    def _fail(self, step: int, reasons: Sequence[str], error: OSError) -> None:
        """Owe the checkpoint, and say so."""
        self._owed = tuple(dict.fromkeys((*self._owed, *reasons)))
        self._retry_at = step + self._distance
        self._distance = min(2 * self._distance, self.settings.run.checkpoint_every)
        told = from_os_error(error, "writing a checkpoint")
        self.reporter.alarm("checkpoint", f"{told.message}: {told.hint}")

    def view(self, step: int) -> None:
        """Write .state.json, which is for people: its failure is an alarm, no more."""
        try:
            files.replace_json(
                self.run.state, {"format": 1, **self.curriculum.view(), "step": step}
            )
        except OSError as error:
            self.reporter.alarm("state", from_os_error(error, "writing .state.json").message)
        else:
            self.reporter.healed("state")

    def _acknowledge(self, request: Request, found: Companion) -> None:
        """Answer a request now that its checkpoint is durable."""
        try:
            if request.pin:
                commit.pin(self.run, found.step)
            acknowledge(self.reporter, self.run, request.id, found)
            requests.discard(self.run, request.id)
        except OSError as error:
            self.reporter.alarm("requests", from_os_error(error, "answering a request").message)
        else:
            self.reporter.healed("requests")

    def _prune(self) -> None:
        """Let go of what retention does not keep; a failed purge is an alarm, no more."""
        keep = self.settings.run
        try:
            pins = commit.pinned(self.run)
            for step in commit.expendable(self._valid, pins, keep.keep_last, keep.keep_every):
                commit.prune(self.run, step)
                self._valid.remove(step)
        except OSError as error:
            self.reporter.alarm(
                "retention", from_os_error(error, "deleting old checkpoints").message
            )
        else:
            self.reporter.healed("retention")


def acknowledge(reporter: Reporter, run: RunDirectory, request_id: str, found: Companion) -> None:
    """Tell that the request `request_id` is served by the durable checkpoint `found`."""
    reporter.event(
        "acknowledged",
        id=request_id,
        step=found.step,
        path=str(run.checkpoint(found.step)),
        sha256=found.sha256,
    )
