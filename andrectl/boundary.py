"""The boundary that a pivot is made at: how far it is, and whether a run stands still at one."""

from __future__ import annotations

from typing import Final

from andread.rundir import history, recovery
from andread.rundir.companion import Companion
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import read_policies
from andread.rundir.presence import Presence
from andread.rundir.settings import Settings
from andrectl import awaiting, render

IN_WORDS: Final = {"step": "the next step boundary", "cadence": "the next regular checkpoint"}


def found(run: RunDirectory) -> tuple[Companion | None, str]:
    """Return the checkpoint that the stopped `run` can be pivoted at, or None and why not.

    It is the newest valid one, the last entry of the history is its own, and a step has run under
    the policy in force. The caller holds `.lock`. Raises `DataError` where no start would do.
    """
    newest = recovery.newest_companion(run)
    recovered = newest and recovery.newest_valid(run, newest.n_params, recovery.verified_reader)
    if not recovered:
        return None, "there is no checkpoint yet"
    vouched = recovered.companion
    if problem := history_problem(run, vouched):
        return None, problem
    if vouched.step <= (last := read_policies(run.policy)[-1]).begins_after:
        return None, f"no step has run under policy {last.id} yet"
    return vouched, ""


def history_problem(run: RunDirectory, vouched: Companion) -> str:
    """Return how the history differs from what `vouched` vouches for; empty if it does not."""
    name, of = run.history.name, run.checkpoint(vouched.step).name
    if not history.ends_at(run.history, vouched.history_length):
        return f"{name} goes past {of}"
    if history.prefix_sha256(run.history, vouched.history_length) != vouched.history_sha256:
        return f"{name} is not what {of} vouches for"
    return ""


def next_step(at: str, step: int, settings: Settings) -> int:
    """Return the boundary that a request made after `step` would be served at."""
    every = settings.run.checkpoint_every if at == "cadence" else 1
    return min((step // every + 1) * every, max(step, settings.run.steps))


class Countdown(awaiting.Narrator):
    """Tells on stderr, from time to time, what a pivot waits for and how long it may take."""

    repeat = 15.0

    def __init__(self, run: RunDirectory, pid: int, settings: Settings, at: str) -> None:
        super().__init__(run, pid)
        self._settings, self._at = settings, at

    def text(self, now: Presence) -> str:
        """Return what is left to wait for."""
        if now.phase not in ("training", "replaying"):
            what = f" ({now.waiting})" if now.waiting else ""
            return f"    {now.phase}{what}, after step {now.step:,}"
        goal = next_step(self._at, now.step, self._settings)
        left = render.count(goal - now.step, "step")
        text = f"    {now.phase}, after step {now.step:,}: {left} left"
        if now.steps_per_minute:
            seconds = (goal - now.step) / now.steps_per_minute * 60
            text += f" to step {goal:,}, about {render.duration(seconds)}"
        return text
