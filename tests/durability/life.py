"""A life in a run directory without training: what the daemon and andrectl do there, and no more.

The same functions in the same order, over small checkpoints whose bytes follow from their step, so
that whatever is found later can be compared with what must be there. No torch: a life is born and
dead in milliseconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
from collections.abc import Callable

from andread.rundir import (
    checkpoint,
    commit,
    disk,
    events,
    files,
    pivot,
    recovery,
    requests,
    samples,
)
from andread.rundir.clock import ProcessIdentity
from andread.rundir.errors import AndreadError
from andread.rundir.history import LossHistory
from andread.rundir.layout import RunDirectory
from andread.rundir.lock import RunLock
from andread.rundir.pivot import Journal
from andread.rundir.policy import Policy, policy_at, read_policies, write_policies
from andread.rundir.requests import Request
from tests.rundir.helpers import entry, vouch_for

PARAMETERS = 300
KEEP = 2

Acknowledge = Callable[[str, int], None]


@functools.lru_cache(maxsize=64)
def picture(step: int, parameters: int = PARAMETERS) -> bytes:
    """Return the checkpoint of `step`, byte for byte."""
    return checkpoint.HEADER.pack(step, parameters) + random.Random(step).randbytes(12 * parameters)


def new_run(path: RunDirectory) -> RunDirectory:
    """Put a policy where a run is to begin."""
    path.path.mkdir(parents=True, exist_ok=True)
    write_policies(path.policy, [Policy()])
    return path


class Life:
    """One process's life. `acknowledge` is told what it vouches for, once that is durable."""

    def __init__(
        self, run: RunDirectory, acknowledge: Acknowledge, parameters: int = PARAMETERS
    ) -> None:
        self.run = run
        self.acknowledge = acknowledge
        self.parameters = parameters
        self.told: list[str] = []
        self.troubles: list[str] = []
        self.rejected: tuple[recovery.Rejected, ...] = ()
        self._lock: RunLock | None = None
        self._history: LossHistory | None = None
        self._valid: list[int] = []
        self._owed = False
        self._last = -1

    @property
    def history(self) -> LossHistory:
        assert self._history is not None
        return self._history

    @property
    def step(self) -> int:
        return self.history.step

    def begin(self) -> None:
        """Start as the daemon starts, up to its first acknowledgements and its first checkpoint."""
        run = self.run
        self._lock = RunLock.acquire(run.lock)
        self._lock.describe({"phase": "loading", "step": 0})
        commit.sweep(run)
        policies = read_policies(run.policy)
        recovered = recovery.newest_valid(run, self.parameters, recovery.verified_reader)
        if recovered is None:
            self._history = LossHistory.create(run.history)
        else:
            self.rejected = recovered.rejected
            for rejected in recovered.rejected:
                recovery.set_aside(run, rejected)
            self._history, _ = recovery.open_history(run, recovered)
            self._last = recovered.companion.step
        self._valid = commit.structurally_valid(run, self.parameters)
        if recovered is not None:  # what a dead life renamed and did not live to tell
            for request_id in recovered.companion.requests:
                self._answer(request_id, self._last)
            self.acknowledge("checkpoint", self._last)
        self.view(policy_at(policies, self.step + 1))
        self._event("started", step=self.step)
        if recovered is None:
            self.save()
        while self.history.replaying:
            self.train()

    def train(self) -> None:
        """Live through one step: record it, or see it again in a replay."""
        step = self.step + 1
        try:
            witness = self.history.record(entry(step))
        except OSError as error:
            self._trouble("history", error)
        else:
            assert witness is None or witness.difference == 0.0, witness
        if self._owed:
            self.save()

    def save(self, asked: tuple[str, ...] = ()) -> bool:
        """Make a checkpoint here, acknowledge it, and let old ones go; False if that failed."""
        run, step = self.run, self.step
        if step != self._last:
            try:
                vouch = vouch_for(self.history, n_params=self.parameters, requests=asked)
                commit.commit(run, picture(step, self.parameters), self.history, vouch)
            except OSError as error:
                self._owed = True
                self._trouble("checkpoint", error)
                return False
            self._owed = False
            self._last = step
            self._valid.append(step)
            self._event("checkpoint", step=step)
        self.acknowledge("checkpoint", step)
        for request_id in asked:
            self._answer(request_id, step)
        self._prune()
        return True

    def _prune(self) -> None:
        try:
            for step in commit.expendable(self._valid, commit.pinned(self.run), KEEP, 0):
                commit.prune(self.run, step)
                self._valid.remove(step)
        except OSError as error:
            self._trouble("retention", error)

    def view(self, policy: Policy) -> None:
        """Write what is for people."""
        try:
            files.replace_json(self.run.state, {"format": 1, "step": self.step, "p": policy.id})
            samples.write(self.run.samples, policy.id, [{"step": self.step}])
        except OSError as error:
            self._trouble("views", error)

    def view_again(self) -> None:
        """Write what is for people, as at an audit."""
        try:
            self.view(policy_at(read_policies(self.run.policy), self.step + 1))
        except AndreadError as error:
            self._trouble("policy", error)

    def snapshot(self, number: int) -> None:
        """Ask as andrectl asks, serve it as the daemon serves it, with a pin."""
        own = ProcessIdentity.own()
        name = f"ask-{number}"
        request = Request(name, own.boot, own.pid, own.ticks, 1e12, pin=True)
        try:
            requests.write(self.run, request)
            lawful, void = requests.take(self.run, own)
            for request_id in void:
                requests.discard(self.run, request_id)
        except OSError as error:
            self._trouble("requests", error)
            return
        self.save(tuple(asked.id for asked in lawful))

    def _answer(self, request_id: str, step: int) -> None:
        try:
            if requests.wants_pin(self.run, request_id):
                commit.pin(self.run, step)
                self.acknowledge("pin", step)
            self._event("acknowledged", id=request_id, step=step)
            requests.discard(self.run, request_id)
        except OSError as error:
            self._trouble("requests", error)

    def lose_history(self) -> None:
        """Have somebody remove the history in use; what a daemon does at its next checkpoint."""
        disk.unlink(self.run.history)
        try:
            if self.history.is_lost:
                self.history.put_back()
        except OSError as error:
            self._trouble("history", error)

    def pivot(self, cap: float) -> None:
        """Change the policy after this very step; what fails before the commit is taken back."""
        run = self.run
        if not self.save():
            return
        try:
            old = read_policies(run.policy)
        except AndreadError as error:
            self._trouble("policy", error)
            return
        wanted = dataclasses.asdict(Policy(caps={"books": cap}))
        journal = Journal(target=wanted, base=old[-1].id, at="step", running=True, t=1.0)
        step = self.step
        if old[-1].begins_after >= step:
            return
        try:
            pivot.write(run, journal)
            name = pivot.archive_name(run, step)
            pinned = step not in commit.pinned(run)
            journal = dataclasses.replace(journal, step=step, archive=name, pinned=pinned)
            pivot.write(run, journal)
            commit.pin(run, step)
            pivot.archive(run, name, {"step": step})
            write_policies(run.policy, [*old, journal.policy()])
            self.acknowledge("policy", step)
        except (AndreadError, OSError) as error:
            self._trouble("pivot", error)
        self.settle()

    def settle(self) -> None:
        """End a pivot that is in flight: conclude it if it is committed, else take it back."""
        run = self.run
        try:
            journal = pivot.read(run)
            if journal is None:
                return
            if journal.committed(read_policies(run.policy)):
                manifest = pivot.read_manifest(run, journal.archive)
                pivot.write_manifest(run, journal.archive, {**manifest, "proof": {"problems": []}})
                self._event("pivot", step=journal.step, policy=journal.policy().id)
                pivot.remove(run)
                self.acknowledge("policy", journal.step or 0)
            else:
                pivot.discard(run, journal.archive)
                if journal.pinned and journal.step is not None:
                    commit.unpin(run, journal.step)
                pivot.remove(run)
        except (AndreadError, OSError) as error:
            self._trouble("pivot", error)

    def end(self) -> None:
        """Stop as on SIGTERM: one more checkpoint."""
        self.save()

    def close(self) -> None:
        """Let go of what a dead process would not hold any more."""
        if self._history is not None:
            self._history.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Life:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _event(self, kind: str, **fields: object) -> None:
        with contextlib.suppress(OSError, AndreadError):
            events.emit(self.run.events, kind, **fields)

    def _trouble(self, what: str, error: AndreadError | OSError) -> None:
        self.troubles.append(f"{what}: {error}")
