"""The polish pivot: six steps, of which one rename is the commit.

    1  the daemon checkpoints at the boundary and holds there
    2  it is stopped; `.lock` is taken, and kept until 5 is done
    3  the sidecars and policy.json are archived
    4  the loss history is checked, byte for byte, and left where it is
    5  policy.json is replaced: the commit
    6  the daemon is started; the proof is made

`.pivot.lock` is held throughout by whoever makes a `Pivot`. An error before the commit takes the
pivot back by itself; a killed andrectl leaves `.pivot.json`, for --resume and --abort. Whatever
happens, a daemon that starts finds a whole policy.json: the old one or the new one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any, Final

from andread.rundir import (
    checkpoint,
    clock,
    commit,
    events,
    feasibility,
    history,
    lock,
    pivot,
    policy,
    requests,
)
from andread.rundir.companion import Companion
from andread.rundir.errors import AndreadError, BusyError, DataError, UsageError
from andread.rundir.layout import RunDirectory
from andread.rundir.lock import RunLock
from andread.rundir.pivot import Journal
from andread.rundir.policy import Policy
from andread.rundir.settings import Settings
from andrectl import (
    asking,
    awaiting,
    boundary,
    change,
    loose,
    planning,
    proving,
    render,
    supervisor,
)

_ROUNDS: Final = 3
"""Times that a boundary is looked for: another start may come between."""
_LOCK_WAIT: Final = 5.0
Manifest = dict[str, Any]


class Pivot:
    """One pivot of `run`; its maker holds the pivot's lock, `held`."""

    def __init__(
        self,
        run: RunDirectory,
        settings: Settings,
        held: RunLock,
        journal: Journal,
        timeout: float | None,
    ) -> None:
        self.run, self.settings, self.journal = run, settings, journal
        self._held = held
        self._deadline = None if timeout is None else clock.boot_seconds() + timeout
        self._stopped: int | None = None
        """The daemon that was stopped for this pivot, and not started again."""

    def carry_out(self) -> Manifest:
        """Do all six steps; return the manifest with the proof."""
        self._policies()
        pivot.write(self.run, self.journal)
        try:
            with self._at_a_boundary() as found:
                manifest = self._archive(found)
                self._check_history(found)
                self._commit()
        except BaseException as error:
            self._take_back(error)
            raise
        return self._conclude(manifest)

    def resume(self) -> Manifest:
        """Go on with a pivot that was left behind: from step 1, or from 6 if it is committed."""
        if self.journal.committed(policy.read_policies(self.run.policy)):
            return self._conclude(pivot.read_manifest(self.run, self.journal.archive))
        planning.refuse_unlawful(self.run, self.settings, self.journal.policy())
        self._clear()
        self.journal = dataclasses.replace(self.journal, step=None, archive="", pinned=False)
        if self.journal.running and lock.holder(self.run.lock) is None:
            self._stopped = 0  # by that pivot
        return self.carry_out()

    def _conclude(self, manifest: Manifest) -> Manifest:
        """Do step 6 of a pivot that is committed, and end it; return the manifest, with proof."""
        self.say(6, "starting the daemon under the new policy")
        try:
            self._tell_commit(manifest)
            started = proving.started(self.run, self.settings, self.journal, manifest, self.left)
            self.say(6, "proving that nothing but the policy has changed")
            proof = proving.proof(self.run, self.settings, manifest, started, self.left)
            manifest = {**manifest, "proof": proof}
            pivot.write_manifest(self.run, self.journal.archive, manifest)
            pivot.remove(self.run)
        except BaseException:
            render.note(
                f"the pivot is committed: from step {(self.journal.step or 0) + 1:,} on the run is "
                "under the new policy; only its proof is missing: andrectl pivot --resume"
            )
            raise
        return manifest

    def abort(self) -> None:
        """Give the pivot up: policy, sidecars, and running or stopped become what was found.

        Raises `UsageError` if a step has run under the new policy.
        """
        if self.journal.committed(policy.read_policies(self.run.policy)):
            self._take_commit_back()
        self._clear()
        if self.journal.running and lock.holder(self.run.lock) is None:
            supervisor.start(self.run, proving.options(self.journal))
        pivot.remove(self.run)

    def left(self) -> float | None:
        """Return the seconds left of --timeout, None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - clock.boot_seconds())

    def say(self, number: int, text: str) -> None:
        """Tell which of the six steps is being done, on stderr and in the lock's content."""
        render.note(f"{number}/6 {text}")
        self._held.describe({"step": number, "doing": text, "up": round(clock.boot_seconds(), 3)})

    @contextlib.contextmanager
    def _at_a_boundary(self) -> Iterator[Companion]:
        """Do steps 1 and 2; within the block `.lock` is held at the boundary yielded."""
        for _ in range(_ROUNDS):
            if lock.holder(self.run.lock) is not None:
                self._hold()
                self.say(2, "stopping the daemon")
                self._stopped = lock.holder(self.run.lock)
                supervisor.stop(self.run, self.left())
            else:
                self.say(1, "the run is stopped: no checkpoint to wait for")
            try:
                held = RunLock.acquire(self.run.lock, _LOCK_WAIT)
            except BusyError:
                continue  # someone started it
            with held:
                found, problem = boundary.found(self.run)
                if found is not None:
                    self.say(2, f"the run stands still after step {found.step:,}")
                    yield found
                    return
            self.say(1, f"{problem}: starting the run under its old policy, to pivot it live")
            supervisor.start(self.run, proving.options(self.journal))
            self._stopped = None
        raise BusyError(
            f"no boundary to pivot at was found in {_ROUNDS} attempts",
            "someone else may be starting the run; andrectl status, then try again",
        )

    def _hold(self) -> None:
        """Do step 1: have the running daemon checkpoint and hold."""
        time.sleep(0.2)  # a hold for an earlier pivot has seen by now whether the lock is held
        whom = asking.owner(self.run)
        if whom.phase == "holding":
            self.say(1, f"the daemon holds already, after step {whom.step:,}")
            return
        narrate = boundary.Countdown(self.run, whom.pid, self.settings, self.journal.at)
        first = policy.read_policies(self.run.policy)[-1].begins_after + 1
        gone = f"the daemon (pid {whom.pid}) ended"

        def trained() -> bool:
            now = asking.owner(self.run)
            if now.pid != whom.pid:
                raise BusyError(gone, "andrectl status tells how; then pivot again")
            return now.step >= first

        waited = "no step under the policy in force"
        awaiting.wait(trained, self.left(), narrate, waited, "pivot again when there is one")
        where = boundary.IN_WORDS[self.journal.at]
        self.say(1, f"asking the daemon to checkpoint and hold at {where}")
        request = asking.request("pivot", whom, self.left(), at=self.journal.at, hold=True)
        answer = asking.acknowledged(self.run, request, self.left(), narrate)
        self.say(1, f"{self.run.checkpoint(answer['step']).name} is durable")

        def holding() -> bool:
            if lock.holder(self.run.lock) != whom.pid:
                return True
            return asking.owner(self.run).phase in ("holding", "stopping")

        awaiting.wait(holding, self.left(), narrate, "the daemon does not hold", "try again")

    def _archive(self, found: Companion) -> Manifest:
        """Do step 3, under the lock."""
        run, step = self.run, found.step
        pinned = step not in commit.pinned(run)
        name = pivot.archive_name(run, step)
        self.journal = dataclasses.replace(self.journal, step=step, archive=name, pinned=pinned)
        self.say(3, f"archiving the sidecars in archive/{name}")
        old = policy.read_policies(run.policy)[-1]
        new = self.journal.policy()
        path = run.checkpoint(step)
        events.sync(run.events)  # the proof looks for the next start behind its end
        manifest: Manifest = {
            "archive": name,
            "step": step,
            "t": round(time.time(), 3),
            "policy": {"old": old.id, "new": new.id},
            "changes": change.differences(old, new, self.settings),
            "checkpoint": {"name": path.name, **checkpoint.hashes(path)},
            "history": {
                "bytes": found.history_length,
                "sha256": found.history_sha256,
                "entries": sum(1 for _ in history.read(run.history)),
            },
            "events_from": loose.file_size(run.events),
            "proof": None,
        }
        pivot.write(run, self.journal)
        commit.pin(run, step)
        return pivot.archive(run, name, manifest)

    def _check_history(self, found: Companion) -> None:
        """Do step 4, under the lock."""
        self.say(4, "checking the loss history, which stays where it is")
        problem = boundary.history_problem(self.run, found)
        if problem:
            raise DataError(f"{problem}: it was changed just now", "find out by whom")

    def _commit(self) -> None:
        """Do step 5, under the lock: one rename."""
        new = self.journal.policy()
        self.say(5, f"putting policy {new.id} in force from step {new.begins_after + 1:,} on")
        feasibility.check(new, self.settings.source_names())  # as it begins after this very step
        policy.write_policies(self.run.policy, [*self._policies(), new])

    def _policies(self) -> list[Policy]:
        """Return the policies so far; `DataError` if the last is not the one to be replaced."""
        policies = policy.read_policies(self.run.policy)
        if policies[-1].id != self.journal.base:
            raise DataError(
                f"policy.json has changed: its last policy is {policies[-1].id}, not "
                f"{self.journal.base}",
                "andrectl pivot --abort, then pivot again",
            )
        return policies

    def _tell_commit(self, manifest: Manifest) -> None:
        """Record the commit as an event, once."""
        new = manifest["policy"]["new"]
        said = events.read(self.run.events, manifest["events_from"])
        if not any(e["event"] == "pivot" and e.get("policy") == new for e in said):
            told = {"step": manifest["step"], "policy": new, "before": manifest["policy"]["old"]}
            events.emit(self.run.events, "pivot", **told, archive=self.journal.archive)

    def _take_back(self, error: BaseException) -> None:
        """Undo what was done before the commit; what cannot be undone is left to --abort."""
        try:
            if self.journal.committed(policy.read_policies(self.run.policy)):
                render.note("the pivot is committed: andrectl pivot --resume ends it")
                return
            self._clear()
            self._start_again()
            pivot.remove(self.run)
        except (AndreadError, OSError) as trouble:
            render.note(f"the pivot could not be taken back: {trouble}")
            render.note("andrectl pivot --abort does so later, --resume goes on instead")
            return
        why = str(error) or type(error).__name__
        render.note(f"the pivot is off ({why}): policy, sidecars and history are what they were")

    def _start_again(self) -> None:
        """Start the run that was stopped for this pivot, once it has stopped."""
        if self._stopped is None or not self.journal.running:
            return
        if lock.holder(self.run.lock) == self._stopped:
            supervisor.stop(self.run, None)
        if lock.holder(self.run.lock) is None:
            render.note("the pivot is off: starting the run again under its old policy")
            supervisor.start(self.run, proving.options(self.journal))

    def _take_commit_back(self) -> None:
        """Put the old policy and the old sidecars back, while no step has run under the new."""
        manifest = pivot.read_manifest(self.run, self.journal.archive)
        step = manifest["step"]

        def refuse_if_begun() -> None:
            if history.last_step(self.run.history) > step:
                raise UsageError(
                    f"step {step + 1:,} has run under the new policy already",
                    "andrectl pivot --resume ends this pivot; then pivot back to the old values",
                )

        refuse_if_begun()
        if lock.holder(self.run.lock) is not None:
            supervisor.stop(self.run, self.left())
        with RunLock.acquire(self.run.lock, _LOCK_WAIT):
            refuse_if_begun()
            pivot.restore(self.run, self.journal.archive)
            policies = policy.read_policies(self.run.policy)
            policy.write_policies(self.run.policy, policies[:-1])

    def _clear(self) -> None:
        """Remove what an uncommitted pivot has made: requests, archive, pin."""
        if self.run.requests.is_dir():
            for path in self.run.requests.glob("pivot-*.json"):
                requests.discard(self.run, path.stem)
        pivot.discard(self.run, self.journal.archive)
        if self.journal.pinned and self.journal.step is not None:
            commit.unpin(self.run, self.journal.step)
