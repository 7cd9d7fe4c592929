"""What must hold of a run directory, whatever has happened to it; what does not is a violation.

- a name that is final is that of a whole file: each .bin with its companion and its hash, each
  JSON file as its reader wants it
- the newest checkpoint that was acknowledged can be resumed from, or a newer one
- nothing that was acknowledged is gone: pins, policies with their archives
- the history is one entry a step, in order, as long as the newest checkpoint at least
- the run goes on from there to the same bytes as the run that nothing happened to
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from andread.rundir import commit, companion, files, pivot, samples
from andread.rundir.errors import AndreadError
from andread.rundir.history import OPENING
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import read_policies
from tests.durability.life import PARAMETERS, Life, picture
from tests.rundir.helpers import entry, history_bytes

AHEAD = 3
"""Steps that a run must get on, once judged."""


@dataclass
class Acknowledged:
    """What has been vouched for so far."""

    checkpoint: int = -1
    policies: set[int] = field(default_factory=set)
    """The steps that an acknowledged policy begins after."""
    pins: set[int] = field(default_factory=set)

    def __call__(self, what: str, step: int) -> None:
        if what == "checkpoint":
            self.checkpoint = max(self.checkpoint, step)
        else:
            (self.policies if what == "policy" else self.pins).add(step)

    def copy(self) -> Acknowledged:
        return Acknowledged(self.checkpoint, set(self.policies), set(self.pins))


def violations(
    run: RunDirectory, acknowledged: Acknowledged, parameters: int = PARAMETERS
) -> list[str]:
    """Return what does not hold of `run`; goes on with the run to find out."""
    found = [*_names(run, parameters), *_kept(run, acknowledged)]
    if found:
        return found
    again = Acknowledged()
    with Life(run, again, parameters) as life:
        try:
            life.begin()
        except (AndreadError, OSError) as error:
            return [f"it does not start: {error}"]
        if life.rejected:
            return [f"rejected: {life.rejected[0].reason}"]
        if again.checkpoint < acknowledged.checkpoint:
            return [
                f"checkpoint {acknowledged.checkpoint} was acknowledged, {again.checkpoint} is left"
            ]
        goal = life.step + AHEAD
        while life.step < goal:
            life.train()
        life.settle()
        if not life.save():
            return [f"it does not go on: {life.troubles}"]
        if life.troubles:
            return [f"trouble on the way: {life.troubles}"]
        if run.checkpoint(goal).read_bytes() != picture(goal, parameters):
            return ["the last checkpoint is not what it should be"]
    if run.history.read_bytes() != history_bytes(map(entry, range(1, goal + 1))):
        return ["the history is not one entry a step"]
    if left := [item.name for item in run.path.rglob("*.tmp-*") if "archive" not in item.parts]:
        return [f"left over: {left}"]
    return []


def _names(run: RunDirectory, parameters: int) -> Iterable[str]:
    """Yield what is wrong with what lies under final names."""
    for step in run.checkpoint_steps():
        path = run.checkpoint(step)
        try:
            vouched = companion.read(run.companion(step))
            data = path.read_bytes()
        except (AndreadError, OSError) as error:
            yield f"{path.name}: {error}"
            continue
        if hashlib.sha256(data).hexdigest() != vouched.sha256 or vouched.step != step:
            yield f"{path.name} is not what its companion vouches for"
        if data != picture(step, parameters):
            yield f"{path.name} is not the checkpoint of its step"
    for path, read in (
        (run.samples, samples.read),
        (run.state, files.read_json),
        (run.pivot, lambda path: pivot.read(RunDirectory(path.parent))),
        (run.policy, read_policies),
    ):
        try:
            read(path)
        except FileNotFoundError:
            continue
        except (AndreadError, OSError) as error:
            yield f"{path.name}: {error}"
    if run.history.exists() and not run.history.read_bytes().startswith(OPENING):
        yield "the history does not begin as one"


def _kept(run: RunDirectory, acknowledged: Acknowledged) -> Iterable[str]:
    """Yield what was acknowledged and is gone, and what a policy in force lacks."""
    if acknowledged.checkpoint >= 0 and not run.checkpoint_steps():
        yield "no checkpoint is left"
    for step in acknowledged.pins - commit.pinned(run):
        yield f"the pin of step {step} is gone"
    for step in acknowledged.pins:
        if not run.checkpoint(step).exists():
            yield f"the pinned checkpoint of step {step} is gone"
    try:
        policies = read_policies(run.policy)
    except (AndreadError, OSError):
        return  # told already
    begun = {policy.begins_after for policy in policies} - {0}
    for step in acknowledged.policies - begun:
        yield f"the policy that begins after step {step} is gone"
    for step in begun:
        names = [name for name in pivot.archives(run) if name.startswith(f"pivot_{step:06d}")]
        if not names:
            yield f"the policy that begins after step {step} has no archive"
            continue
        try:
            manifest = pivot.read_manifest(run, names[-1])
        except (AndreadError, OSError) as error:
            yield f"the archive of step {step}: {error}"
            continue
        for name, told in manifest["files"].items():
            path = run.archive / names[-1] / name
            if told is None:
                continue
            data = path.read_bytes() if path.exists() else b""
            if hashlib.sha256(data).hexdigest() != told["sha256"]:
                yield f"{names[-1]}/{name} is not what its manifest says"
