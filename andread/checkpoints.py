"""A checkpoint from the step boundary to its acknowledgement and the pruning of old ones.

`begin` freezes a boundary: one record and one copy of weights, m and v. A thread then commits,
acknowledges and prunes from these alone, while training goes on; `outcome` tells how it went.

A checkpoint that is due is never skipped: one that could not be written is owed, and tried again
at later boundaries, at growing distances, while training goes on and the last good one stays. A
step that has a valid checkpoint is never written again; requests that meet at one boundary share
one file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any

from andread.curriculum.batches import Curriculum
from andread.duties import Reporter
from andread.engine.interface import Engine, Snapshot
from andread.rundir import checkpoint, commit, files, requests
from andread.rundir.companion import Companion
from andread.rundir.errors import from_os_error
from andread.rundir.history import LossHistory
from andread.rundir.layout import RunDirectory
from andread.rundir.requests import Request
from andread.rundir.settings import Settings
from andread.watch import LossWatch


@dataclass(frozen=True)
class Boundary:
    """All that the writer reads of the state after a step; nothing in it changes any more."""

    snapshot: Snapshot
    companion: dict[str, Any]
    """The fields of the companion but for the hash."""
    view: dict[str, Any]
    """What .state.json shows."""
    begun: float
    """`time.monotonic()` when the boundary was reached."""
    told: dict[str, Any]
    """What the event tells beside what the companion says."""


@dataclass(frozen=True)
class Outcome:
    """How a checkpoint went; one that is not durable leaves what was `asked` unserved."""

    durable: bool
    asked: tuple[Request, ...]


class Checkpointer:
    """Writes the checkpoints of one run, one at a time."""

    def __init__(
        self,
        run: RunDirectory,
        settings: Settings,
        engine: Engine,
        curriculum: Curriculum,
        history: LossHistory,
        watch: LossWatch,
        reporter: Reporter,
        data: dict[str, str],
        last: Companion | None,
    ) -> None:
        self.last = last
        """The companion of the newest durable checkpoint."""
        self._run = run
        self._settings = settings
        self._engine = engine
        self._curriculum = curriculum
        self._history = history
        self._watch = watch
        self._reporter = reporter
        self._data = data
        self._valid = commit.structurally_valid(run, engine.n_params)
        self._owed: tuple[str, ...] = ()
        self._retry_at = 0
        self._distance = 1
        self._writer = futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: futures.Future[Outcome] | None = None
        self._moved = threading.Event()

    @property
    def writing(self) -> bool:
        """Tell whether the outcome of a checkpoint is still to be taken."""
        return self._writing is not None

    def owed(self, step: int) -> tuple[str, ...]:
        """Return why a checkpoint that failed earlier is to be tried again at `step`.

        While one is written it is tried already, and its outcome will tell what is still owed.
        """
        return self._owed if self._writing is None and step >= self._retry_at else ()

    def begin(
        self,
        step: int,
        reasons: Sequence[str],
        asked: Sequence[Request],
        told: dict[str, Any],
    ) -> None:
        """Begin to make the state after `step` durable, and then to acknowledge `asked`.

        `told` goes into the event. The outcome of an earlier one must have been taken.
        """
        assert self._writing is None, "one checkpoint at a time"
        if self.last is not None and self.last.step == step:
            self._writing = self._writer.submit(self._serve, tuple(asked))
            return
        begun = time.monotonic()
        snapshot = self._engine.snapshot(step)
        boundary = Boundary(
            snapshot,
            self._record(step, reasons, asked),
            self._view(step),
            begun,
            {**told, "stalled": round(time.monotonic() - begun, 4)},
        )
        self._writing = self._writer.submit(self._write, boundary, tuple(asked))

    def outcome(self, wait: bool) -> Outcome | None:
        """Return how the last checkpoint went, once; None if it is not over or there is none.

        With `wait` the training thread stands still until it is over, and beats as the writer does.
        """
        if self._writing is None:
            return None
        while wait and not futures.wait([self._writing], timeout=0.1).done:
            if self._moved.is_set():
                self._moved.clear()
                self._reporter.beat()
        if not self._writing.done():
            return None
        done, self._writing = self._writing, None
        return done.result()

    def view(self, step: int) -> None:
        """Write .state.json as of the boundary after `step`."""
        self._show(self._view(step))

    def _record(
        self, step: int, reasons: Sequence[str], asked: Sequence[Request]
    ) -> dict[str, Any]:
        """Return the fields of the companion of this boundary, but for the hash."""
        prefix = self._history.prefix
        return {
            "step": step,
            "n_params": self._engine.n_params,
            "history_length": prefix.length,
            "history_sha256": prefix.sha256,
            "policy": self._curriculum.policy.id,
            "reasons": tuple(reasons),
            "requests": tuple(request.id for request in asked),
            "curriculum": self._curriculum.record(),
            "scaler": self._engine.scaler_state(),
            "counters": self._watch.counters,
            "trajectory": self._settings.trajectory(),
            "data": self._data,
            "environment": self._engine.environment,
            "t": round(time.time(), 3),
        }

    def _view(self, step: int) -> dict[str, Any]:
        return {"format": 1, **self._curriculum.view(), "step": step}

    def _write(self, boundary: Boundary, asked: tuple[Request, ...]) -> Outcome:
        """Commit `boundary` and serve `asked`; a failure is an alarm. Runs in the writer."""
        step, reasons = boundary.snapshot.step, boundary.companion["reasons"]
        try:
            self.last = commit.commit(
                self._run,
                boundary.snapshot.image(),
                self._history,
                lambda digest: Companion(sha256=digest, **boundary.companion),
                self._moved.set,
            )
        except OSError as error:
            self._fail(step, reasons, error)
            return Outcome(False, asked)
        self._owed, self._distance = (), 1
        self._valid.append(step)
        self._reporter.healed("checkpoint")
        self._show(boundary.view)
        self._reporter.event(
            "checkpoint",
            step=step,
            path=self._run.checkpoint(step).name,
            bytes=checkpoint.file_size(self._engine.n_params),
            sha256=self.last.sha256,
            reasons=list(reasons),
            seconds=round(time.monotonic() - boundary.begun, 3),
            **boundary.told,
        )
        return self._serve(asked)

    def _serve(self, asked: tuple[Request, ...]) -> Outcome:
        """Acknowledge `asked` by the newest durable checkpoint, and prune."""
        assert self.last is not None
        for request in asked:
            self._acknowledge(request, self.last)
        self._prune()
        return Outcome(True, asked)

    def _fail(self, step: int, reasons: Sequence[str], error: OSError) -> None:
        """Owe the checkpoint, and say so."""
        self._owed = tuple(dict.fromkeys((*self._owed, *reasons)))
        self._retry_at = step + self._distance
        self._distance = min(2 * self._distance, self._settings.run.checkpoint_every)
        told = from_os_error(error, "writing a checkpoint")
        self._reporter.alarm("checkpoint", f"{told.message}: {told.hint}")

    def _show(self, view: dict[str, Any]) -> None:
        """Write .state.json, which is for people: its failure is an alarm, no more."""
        try:
            files.replace_json(self._run.state, view)
        except OSError as error:
            self._reporter.alarm("state", from_os_error(error, "writing .state.json").message)
        else:
            self._reporter.healed("state")

    def _acknowledge(self, request: Request, found: Companion) -> None:
        """Answer a request now that its checkpoint is durable."""
        try:
            if request.pin:
                commit.pin(self._run, found.step)
            acknowledge(self._reporter, self._run, request.id, found)
            requests.discard(self._run, request.id)
        except OSError as error:
            self._reporter.alarm("requests", from_os_error(error, "answering a request").message)
        else:
            self._reporter.healed("requests")

    def _prune(self) -> None:
        """Let go of what retention does not keep; a failed purge is an alarm, no more."""
        keep = self._settings.run
        try:
            pins = commit.pinned(self._run)
            for step in commit.expendable(self._valid, pins, keep.keep_last, keep.keep_every):
                if commit.prune(self._run, step):
                    self._valid.remove(step)
        except OSError as error:
            self._reporter.alarm(
                "retention", from_os_error(error, "deleting old checkpoints").message
            )
        else:
            self._reporter.healed("retention")


def acknowledge(reporter: Reporter, run: RunDirectory, request_id: str, found: Companion) -> None:
    """Tell that the request `request_id` is served by the durable checkpoint `found`."""
    reporter.event(
        "acknowledged",
        id=request_id,
        step=found.step,
        path=str(run.checkpoint(found.step)),
        sha256=found.sha256,
    )
