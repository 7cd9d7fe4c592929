"""The training loop. Knows no signals, no systemd, no command line.

Between two steps lies a boundary, and everything that may interrupt training happens there, in
this order: checkpoint if due, leave if asked, audit if due, hold if asked, next step. A checkpoint
is frozen at its boundary and written beside the steps that follow; the audit of the same step sees
the same weights.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import Any, Final

from andread.audit import Auditor, Interrupted
from andread.checkpoints import Checkpointer
from andread.curriculum.batches import Batch, Curriculum
from andread.duties import Control, Progress, Reporter
from andread.engine.interface import Engine, StepResult
from andread.engine.optimizer import learning_rate
from andread.rundir import clock, lock, samples
from andread.rundir.errors import AndreadError, BusyError, LastWriteError, from_os_error
from andread.rundir.history import LossHistory, Witness
from andread.rundir.layout import RunDirectory
from andread.rundir.overrides import settings_under
from andread.rundir.requests import Request
from andread.rundir.settings import Settings
from andread.watch import LossWatch, entry_loss

HOLD_LIMIT: Final = 600.0
"""Seconds that a run holds at a boundary for a pivot, at most."""

_RECENT_STEPS: Final = 50


class Trainer:
    """Trains one run from `step` on, until it is finished or asked to stop."""

    def __init__(
        self,
        run: RunDirectory,
        settings: Settings,
        engine: Engine,
        curriculum: Curriculum,
        history: LossHistory,
        checkpointer: Checkpointer,
        auditor: Auditor,
        watch: LossWatch,
        audits: list[dict[str, Any]],
        control: Control,
        reporter: Reporter,
        same_environment: bool = True,
    ) -> None:
        self._run = run
        self._settings = settings
        self._engine = engine
        self._curriculum = curriculum
        self._history = history
        self._checkpointer = checkpointer
        self._auditor = auditor
        self._watch = watch
        self._audits = audits
        self._control = control
        self._reporter = reporter
        self._replay = Replay(history, reporter, same_environment)
        self._pending: tuple[Request, ...] = ()
        self._unserved: tuple[Request, ...] = ()  # by a checkpoint that failed
        self._hold_asked = False
        self._drawn: Batch | None = None
        self._durations: deque[float] = deque(maxlen=_RECENT_STEPS)
        self.step = history.step

    @property
    def steps_per_minute(self) -> float | None:
        """Return the median rate of the recent steps, None before the second one."""
        if len(self._durations) < 2:
            return None
        return round(60.0 / statistics.median(self._durations), 3)

    def train(self) -> str:
        """Train; return "finished" or "stopped", when no write is in flight any more.

        Raises `DivergedError` where the run must halt, `LastWriteError` where it ended and its
        last checkpoint could not be written.
        """
        if self._control.stopping():
            return "stopped"
        try:
            return self._train()
        except BusyError:  # the run is another's now: nothing more is written
            raise
        except BaseException:
            self._checkpointer.outcome(wait=True)
            raise

    def _train(self) -> str:
        """Train to the end, boundary by boundary."""
        while True:
            stopping = self._control.stopping()
            finished = self.step >= self._settings.run.steps
            durable = self._checkpoint_if_due(stopping, finished)
            if (stopping or finished) and not durable:
                last = self._checkpointer.last
                raise LastWriteError(
                    f"the checkpoint of step {self.step} could not be written; the newest durable "
                    f"one is {f'of step {last.step}' if last else 'none'}",
                    "free space or mend the disk, then start again: the steps since are replayed",
                )
            if stopping:
                return "stopped"
            if not self._audit_if_due():
                continue
            if self._hold_asked:
                self._hold()
                continue
            if finished:
                return "finished"
            if self._control.stopping():  # heard meanwhile: in a write, it costs no step more
                continue
            self._train_one_step()

    def _train_one_step(self) -> None:
        """Train one step, and record it or compare it with its record."""
        step, replayed = self.step + 1, self._history.replaying
        self._reporter.phase("replaying" if replayed else "training")
        begun = time.monotonic()
        optimizer = settings_under(self._settings, self._curriculum.policy).optimizer
        self._engine.under(optimizer)
        lr = learning_rate(optimizer, step)
        batch = self._drawn or self._curriculum.draw(step)
        launched = self._engine.step(batch.windows, step, lr)
        last = step >= self._settings.run.steps
        self._drawn = None if last else self._curriculum.ahead(batch)  # while the device computes
        result = launched.read()
        loss, norm, skipped = entry_loss(result)
        pulls = self._curriculum.pulls(batch)
        self._control.confirm()
        entry = {"step": step, "loss": loss, "lr": lr, "grad_norm": norm, "pulls": pulls}
        self._record(entry | ({"skipped": skipped} if skipped else {}))
        self._move_on(batch, result, replayed)
        seconds = time.monotonic() - begun
        self._durations.append(seconds)
        rate, steps = self.steps_per_minute, self._settings.run.steps
        self._reporter.progress(
            Progress(step, steps, loss, lr, norm, seconds, rate, pulls, replayed)
        )
        self._watch.verdict(step)

    def _move_on(self, batch: Batch, result: StepResult, replayed: bool) -> None:
        """Let the curriculum and the watch take the step in, and tell what they have to tell."""
        policy = self._curriculum.policy
        events = self._curriculum.advance(batch, result.losses if result.applied else None)
        if self._curriculum.policy is not policy:  # in a replay from before a pivot
            self._audits.clear()
            self._reporter.event("policy", step=batch.step, policy=self._curriculum.policy.id)
        events += self._watch.observe(batch.step, result)
        for event in events:
            kind = event.pop("event")
            self._reporter.event(kind, **event, **({"replayed": True} if replayed else {}))
        self.step = batch.step

    def _record(self, entry: dict[str, Any]) -> None:
        """Append to the loss history; what cannot be written now is queued there, and told."""
        try:
            witness = self._history.record({**entry, "t": round(time.time(), 3)})
        except OSError as error:
            self._reporter.alarm("history", from_os_error(error, "writing .loss.json").message)
            return
        if witness is None:
            self._reporter.healed("history")
        else:
            self._replay.observe(witness)

    def _checkpoint_if_due(self, stopping: bool, finished: bool) -> bool:
        """Begin the checkpoint of this boundary if there is a reason; False if one failed.

        It is waited for where no step may follow before it is durable.
        """
        orders = self._control.orders()
        self._pending += orders.requests
        durable = self._take_in(wait=False)
        reasons, now = self._due(orders.checkpoint, stopping, finished)
        if not reasons:
            return durable
        waited = time.monotonic()
        if self._checkpointer.writing:  # one that is due is never skipped
            self._reporter.phase("checkpointing", "the checkpoint before")
            self._take_in(wait=True)
            reasons, now = self._due(orders.checkpoint, stopping, finished)
        self._reporter.phase("checkpointing")
        self._control.confirm()
        self._look_after_history()
        told = {
            "waited": round(time.monotonic() - waited, 4),
            "steps_per_minute": self.steps_per_minute,
        }
        first = self._checkpointer.last is None
        self._checkpointer.begin(self.step, reasons, now, told)
        self._pending = tuple(r for r in self._pending if r not in now)
        self._unserved = tuple(r for r in self._unserved if r not in now)
        if first or stopping or finished or any(request.hold for request in now):
            return self._take_in(wait=True)
        return True

    def _due(self, plain: bool, stopping: bool, finished: bool) -> tuple[list[str], list[Request]]:
        """Return why this boundary needs a checkpoint, and the requests that it serves.

        `plain` tells that one was asked for by a signal alone. What a failed one left unserved is
        no reason by itself: that one is owed, and tried again at its distance.
        """
        cadence = self.step % self._settings.run.checkpoint_every == 0
        now = [r for r in self._pending if self._is_due(r, cadence or finished)]
        first = self._checkpointer.last is None
        reasons = [
            reason
            for reason, holds in (
                ("start", first),
                ("cadence", cadence and not first),
                ("signal", plain or any(not r.hold for r in now)),
                ("pivot", any(r.hold for r in now)),
                ("stop", stopping),
                ("end", finished),
            )
            if holds
        ]
        reasons = list(dict.fromkeys((*reasons, *self._checkpointer.owed(self.step))))
        again = [r for r in self._unserved if reasons and self._is_due(r, cadence or finished)]
        return reasons, again + now

    def _take_in(self, wait: bool) -> bool:
        """Take in how the checkpoint in flight went, if it is over; False if it failed.

        What was asked of one that failed joins the next one.
        """
        outcome = self._checkpointer.outcome(wait)
        if outcome is None:
            return True
        if not outcome.durable:
            self._unserved += outcome.asked
            return False
        self._hold_asked = any(request.hold for request in outcome.asked)
        self._look_after_sources()
        return True

    def _look_after_history(self) -> None:
        """Put the loss history back if it was removed or replaced while it is in use."""
        if not self._history.is_lost:
            return
        try:
            self._history.put_back()
        except OSError as error:
            self._reporter.alarm("history", from_os_error(error, "restoring .loss.json").message)
        else:
            detail = ".loss.json was removed or replaced while in use; it was put back whole"
            self._reporter.event("fault", what="history", detail=detail)

    def _look_after_sources(self) -> None:
        """Raise the alarm for tokens that were removed or cut while they are in use."""
        lost = [name for source in self._curriculum.sources for name in source.lost()]
        if lost:
            self._reporter.alarm(
                "sources",
                f"{', '.join(lost)} in {self._run.data} is gone or was cut: training reads on as "
                "long as it can, but could not start again; restore it",
            )
        else:
            self._reporter.healed("sources")

    def _is_due(self, request: Request, cadence: bool) -> bool:
        """Tell whether `request` is to be served now; a hold waits until a replay is over."""
        if request.hold and self._history.replaying:
            return False
        return cadence or request.at == "step"

    def _hold(self) -> None:
        """Run no step while a pivot holds its lock, until asked to stop, up to a limit."""
        self._hold_asked = False
        begun = clock.boot_seconds()
        self._reporter.phase("holding", "a pivot, to stop the run")
        self._reporter.event("holding", step=self.step)
        while not self._control.stopping():
            if not self._pivot_is_there():
                self._reporter.event("released", step=self.step, why="no pivot holds its lock")
                return
            if clock.boot_seconds() - begun > HOLD_LIMIT:
                why = f"held for {HOLD_LIMIT:.0f} seconds"
                self._reporter.event("released", step=self.step, why=why)
                return
            self._reporter.beat()
            time.sleep(0.05)

    def _pivot_is_there(self) -> bool:
        """Tell whether somebody holds the pivot's lock."""
        try:
            return lock.holder(self._run.pivot_lock) is not None
        except (OSError, AndreadError):
            return False

    def _audit_if_due(self) -> bool:
        """Audit this boundary if it is due and not done; False if the audit gave way."""
        due = self.step > 0 and self.step % self._settings.run.sample_every == 0
        if not due or any(audit["step"] == self.step for audit in self._audits):
            return True
        self._reporter.phase("auditing")
        try:
            audit = self._auditor.audit(self.step)
        except Interrupted:
            return False
        self._audits.append(audit)
        del self._audits[: -self._settings.audit.keep]
        try:
            samples.write(self._run.samples, self._curriculum.policy.id, self._audits)
        except OSError as error:
            self._reporter.alarm("samples", from_os_error(error, "writing .samples.json").message)
        else:
            self._reporter.healed("samples")
        self._reporter.event(
            "audit", **{key: audit[key] for key in ("step", "validation", "mean", "seconds")}
        )
        return True


class Replay:
    """The loss history as a witness: replayed steps must reproduce what was recorded."""

    def __init__(self, history: LossHistory, reporter: Reporter, same_environment: bool) -> None:
        self._history = history
        self._reporter = reporter
        self._same_environment = same_environment
        self._first = history.step + 1
        self._worst: Witness | None = None
        self._differing: list[int] = []

    def observe(self, witness: Witness) -> None:
        """Take in one replayed step; after the last one give the verdict."""
        if witness.difference:
            self._differing.append(witness.step)
            if self._worst is None or witness.difference > self._worst.difference:
                self._worst = witness
        if self._history.replaying:
            return
        verdict: dict[str, Any] = {"from": self._first, "to": witness.step, "verdict": "exact"}
        if self._worst is not None:
            verdict |= {
                "verdict": "differs",
                "first": self._differing[0],
                "steps": len(self._differing),
                "largest": min(self._worst.difference, 1e308),
                "at": self._worst.step,
                "detail": self._worst.detail,
                "same_environment": self._same_environment,
            }
        self._reporter.event("replay", **verdict)
        if self._worst is not None and self._same_environment:
            self._reporter.event(
                "fault",
                what="replay",
                detail=f"step {self._worst.step} did not repeat what was recorded: "
                f"{self._worst.detail}",
            )
