"""The proof of a pivot: what the daemon says it resumed from, and what the files say now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from andread.rundir import checkpoint, events, history, lock, policy, samples
from andread.rundir.checkpoint import InvalidCheckpoint
from andread.rundir.errors import TEMPORARY, AndreadError, DataError
from andread.rundir.layout import RunDirectory
from andread.rundir.pivot import Journal
from andread.rundir.settings import Settings
from andrectl import awaiting, loose, render, supervisor

Left = Callable[[], float | None]
Event = dict[str, Any]
_PARTS: Final = ("file", *checkpoint.REGIONS)
_LATER: Final = "andrectl start, then andrectl pivot --resume, which ends the pivot with its proof"


def options(journal: Journal) -> list[str]:
    """Return the options that the daemon found was started with and that hold on."""
    arguments = [str(word) for word in journal.supervisor.get("arguments", [])]
    if "--device" in arguments[:-1]:
        return ["--device", arguments[arguments.index("--device") + 1]]
    return []


def started(
    run: RunDirectory, settings: Settings, journal: Journal, manifest: dict[str, Any], left: Left
) -> Event:
    """Return the first `started` event since the commit; start the daemon if that is needed."""
    said = _first_start(run, manifest)
    idle = lock.holder(run.lock) is None
    if idle and (said is None or _awaits_a_step(run, settings, manifest)):
        if journal.supervisor.get("kind") == "foreground":
            render.note("the run was in a terminal; it goes on in the background")
        try:
            supervisor.start(run, options(journal))
        except AndreadError as error:
            if error.exit_code != TEMPORARY or lock.holder(run.lock) is None:
                raise
            render.note("someone else is starting the run")
    pid = lock.holder(run.lock)
    found: list[Event] = []

    def told() -> bool:
        # Whether it has ended is asked first: what it said last is then on file.
        ended = pid is None or lock.holder(run.lock) != pid
        found.extend(filter(None, [_first_start(run, manifest)]))
        if ended and not found:
            raise supervisor.NotRunning("the daemon ended before it trained", _LATER)
        return bool(found)

    awaiting.wait(told, left(), awaiting.Narrator(run, pid or 0), "it is still loading", _LATER)
    return found[0]


def _awaits_a_step(run: RunDirectory, settings: Settings, manifest: dict[str, Any]) -> bool:
    """Tell whether the first step under the new policy is still to come."""
    step, length = manifest["step"], manifest["history"]["bytes"]
    return step < settings.run.steps and history.entry_after(run.history, length, step) is None


def _first_start(run: RunDirectory, manifest: dict[str, Any]) -> Event | None:
    """Return the first `started` event since the commit, if there is one.

    Where the events are shorter than they were, somebody has replaced them: the policy tells then.
    """
    offset, new = manifest["events_from"], manifest["policy"]["new"]
    whole = loose.file_size(run.events) >= offset
    for event in events.read(run.events, offset if whole else 0):
        if event["event"] == "started" and (whole or event.get("policy") == new):
            return event
    return None


def proof(
    run: RunDirectory, settings: Settings, manifest: dict[str, Any], said: Event, left: Left
) -> dict[str, Any]:
    """Return the proof: what is the same, what is new, and under `problems` what is not so."""
    step, before = manifest["step"], manifest["checkpoint"]
    first = None if step >= settings.run.steps else _first_step(run, manifest, left)
    after = _hashes(run, step)
    kept = history.prefix_sha256(run.history, manifest["history"]["bytes"])
    counts = [entry["step"] for entry in history.read(run.history)]
    now = policy.policy_at(policy.read_policies(run.policy), step + 1).id
    checks = {
        f"it resumed from step {said.get('step')}, not {step}": said.get("step") == step,
        "it resumed from another checkpoint": said.get("sha256") == before["file"],
        "its bandit was not fresh": said.get("pulls") == 0,
        "it runs under another policy": said.get("policy") == now == manifest["policy"]["new"],
        "the loss history is not what it was": kept == manifest["history"]["sha256"],
        "the loss history does not have every step once": _consecutive(counts),
        "the audits were not reset": samples.read(run.samples)["policy"] == now,
        **{f"{part} changed": after.get(part) == before[part] for part in _PARTS},
    }
    return {
        "resumed_from": said.get("checkpoint"),
        "sha256": said.get("sha256"),
        "checkpoint": after,
        "history": {
            "bytes": manifest["history"]["bytes"],
            "sha256": kept,
            "entries": len(counts),
        },
        "policy": now,
        "pulls": said.get("pulls"),
        "first_step": first,
        "problems": [problem for problem, holds in checks.items() if not holds],
    }


def _hashes(run: RunDirectory, step: int) -> dict[str, str]:
    """Return the hashes of the checkpoint; none if the daemon has set it aside."""
    try:
        return checkpoint.hashes(run.checkpoint(step))
    except (InvalidCheckpoint, FileNotFoundError):
        return {}


def _consecutive(steps: list[int]) -> bool:
    return not steps or steps == list(range(steps[0], steps[0] + len(steps)))


def _first_step(run: RunDirectory, manifest: dict[str, Any], left: Left) -> dict[str, Any]:
    """Wait for the first entry under the new policy and return it."""
    step, length = manifest["step"], manifest["history"]["bytes"]
    found: list[dict[str, Any]] = []
    pid = lock.holder(run.lock)

    def recorded() -> bool:
        ended = lock.holder(run.lock) is None
        found.extend(filter(None, [history.entry_after(run.history, length, step)]))
        if ended and not found:
            raise supervisor.NotRunning(
                f"the daemon ended before step {step + 1:,} was recorded", _LATER
            )
        return bool(found)

    narrate = awaiting.Narrator(run, pid or 0)
    awaiting.wait(recorded, left(), narrate, f"no entry of step {step + 1:,} yet", _LATER)
    return found[0]


def lines(manifest: dict[str, Any]) -> list[str]:
    """Return the proof as text; raise `DataError` where it fails."""
    given, before = manifest["proof"], manifest["checkpoint"]
    if given["problems"]:
        raise DataError(
            f"the pivot is in force, but not all of it is proven: {'; '.join(given['problems'])}",
            "andrectl status and .events.json tell what the daemon found at its start",
        )
    first = given["first_step"]
    pulls = ", ".join(f"{name} {n}" for name, n in first["pulls"].items()) if first else ""
    return [
        f"resumed from   {before['name']}  sha256 {given['sha256']}",
        *(f"{part:<13}  {given['checkpoint'][part]}  unchanged" for part in checkpoint.REGIONS),
        f"loss history   {manifest['history']['entries']:,} entries, "
        f"{manifest['history']['bytes']:,} bytes, sha256 {given['history']['sha256']}  unchanged",
        f"policy         {manifest['policy']['old']} → {manifest['policy']['new']}, "
        f"in force since step {manifest['step'] + 1:,}",
        f"bandit         fresh: {given['pulls']} pulls",
        f"first step     {first['step']:,}, loss {first['loss']}, pulls {pulls}"
        if first
        else "first step     the run is finished: it comes when [run] steps is raised",
    ]
