"""All that `andrectl status` tells, gathered from a run directory in whatever state it is.

Nothing here raises for a damaged file: it is named under `damaged`, and the rest is told. Only
ends of files are read, so that a run of 200,000 steps is as quick to ask as a new one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from typing import Any, Final

from andread.rundir import (
    checkpoint,
    clock,
    commit,
    events,
    history,
    lineage,
    lock,
    pivot,
    policy,
    presence,
    run_toml,
)
from andread.rundir.layout import RunDirectory
from andread.rundir.presence import Presence
from andread.rundir.settings import Settings
from andrectl import inventory, loose, systemd
from andrectl.loose import Reader, Table

WINDOW: Final = 100
"""Steps that a mean of losses is taken over."""
_EVENTS_TAIL: Final = 1 << 20
_SILENCE: Final = 60.0
"""Seconds without a word after which a daemon of quick steps counts as stuck."""
_TROUBLE: Final = ("fault", "history_fault", "diverged")
_FINDINGS: Final = (
    *("swept", "rejected", "history_fault", "history_cut", "zombie", "new_source", "ignored"),
    *("environment", "refused", "fault", "healed"),
)
"""What a daemon may have to tell before it trains."""


def overview(run: RunDirectory) -> Table:
    """Return the whole status of `run` as a JSON-like table."""
    reader = Reader()
    owner = _owner(run, reader)
    made = reader.attempt(run.settings, lambda: run_toml.read_settings(run.settings))
    losses = _losses(run, reader)
    said = _events(run, reader)
    durable = _durable(run, reader, made, said)
    newest = durable["checkpoint"]
    recorded = losses["last_step"]
    known = max(recorded, newest["step"] if newest else 0)
    step = owner["step"] if owner["step"] is not None else known
    steps = made.run.steps if made else owner["steps"]
    rate = owner["steps_per_minute"]
    begun = bool(recorded) or (bool(said or newest) and not _only_imported(newest, said))
    now = _policy(run, reader, step)
    return {
        "run": str(run.path),
        "state": owner["state"] if begun or owner["state"] != "stopped" else "never started",
        **{key: owner[key] for key in ("phase", "pid", "waiting", "alarm", "device", "supervisor")},
        "service": reader.attempt(run.lock, lambda: _service(run)),
        "silent_seconds": owner["silent_seconds"],
        "stuck": owner["stuck"],
        "step": step,
        "steps": steps,
        "steps_per_minute": rate,
        "eta_seconds": max(0, steps - step) / rate * 60 if rate and steps else None,
        "recorded_step": recorded,
        **{key: losses[key] for key in ("loss", "loss_mean", "loss_mean_before", "losses")},
        **durable,
        "prepared": all(run.manifest(name).is_file() for name in made.source_names())
        if made
        else None,
        "policy": now,
        **_sources(run, reader, made, now["id"] if now else ""),
        "validation": _validation(run, reader),
        "requests": _requests(run, reader),
        "pivot": _pivot(run, reader),
        "lineage": _lineage(run, reader),
        "forks": len(reader.attempt(run.forks, lambda: lineage.forks(run)) or []),
        **_told(said),
        "rejected": reader.attempt(run.path, lambda: inventory.rejected(run)) or [],
        "damaged": reader.damaged,
    }


def _only_imported(newest: Table | None, said: list[Table]) -> bool:
    """Tell whether all that has happened to a run is that its checkpoint was imported."""
    imported = newest is not None and newest["reasons"] == ["import"]
    return imported and all(event["event"] in ("checkpoint", "forked") for event in said)


def _owner(run: RunDirectory, reader: Reader) -> Table:
    """Return who owns the run and what it tells about itself."""
    problems = len(reader.damaged)
    pid = reader.attempt(run.lock, lambda: lock.holder(run.lock))
    told = reader.attempt(run.lock, lambda: presence.read(run.lock)) or Presence()
    state = "stopped" if pid is None else "running"
    if len(reader.damaged) > problems:
        state = "unknown"
    own = pid is not None and told.pid == pid and told.boot == clock.boot_id()
    silent = max(0.0, clock.boot_seconds() - told.up) if own else None
    rate = told.steps_per_minute
    patience = max(_SILENCE, 5 * 60 / rate) if rate else 10 * _SILENCE
    return {
        "state": state,
        "pid": pid,
        "phase": (told.phase or "starting") if own else ("starting" if pid else None),
        "step": told.step if own else None,
        "steps": told.steps or None,
        "steps_per_minute": rate if own else None,
        "device": told.device or None,
        "supervisor": told.supervisor or None,
        "waiting": told.waiting if own else "",
        "alarm": _read_only(run) or (told.alarm if own else ""),
        "silent_seconds": silent,
        "stuck": silent is not None and silent > patience,
    }


def _read_only(run: RunDirectory) -> str:
    """Return the alarm that the daemon itself has no place left to raise."""
    with contextlib.suppress(OSError):
        if os.statvfs(run.path).f_flag & os.ST_RDONLY:
            return (
                "the file system is read-only here, as after a disk error: nothing can be "
                "recorded, not even what the daemon has to say; see dmesg and the journal"
            )
    return ""


def _service(run: RunDirectory) -> Table | None:
    """Return what systemd says of the run's unit, where it has one."""
    unit = systemd.unit_of(run)
    return unit.table() if unit is not None else None


def _losses(run: RunDirectory, reader: Reader) -> Table:
    """Return the last loss and where losses are going, from the end of the history."""
    read = reader.attempt(run.history, lambda: history.tail(run.history, 2 * WINDOW))
    entries = read or []
    if read == [] and run.history.is_file():
        empty = len(history.OPENING + history.CLOSING)
        if run.history.stat().st_size > empty:
            reader.blame(run.history, "holds no readable entry")
    found = [loss for entry in entries if (loss := loose.number(entry.get("loss"))) is not None]
    return {
        "last_step": loose.whole(entries[-1].get("step")) if entries else 0,
        "loss": found[-1] if found else None,
        "loss_mean": _mean(found[-WINDOW:]),
        "loss_mean_before": _mean(found[:-WINDOW]),
        "losses": found,
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _durable(run: RunDirectory, reader: Reader, made: Settings | None, said: list[Table]) -> Table:
    """Return the newest checkpoint, what retention has kept, and what the disk has left."""
    steps = reader.attempt(run.path, run.checkpoint_steps) or []
    pins = reader.attempt(run.pins, lambda: commit.pinned(run)) or set()
    newest = None
    for step in reversed(steps):
        if (found := inventory.entry(run, step, pins)) is None:
            continue
        if not found.problem:
            newest = found
            break
        reader.blame(run.checkpoint(step), f"cannot be resumed from: {found.problem}")
    total = sum(loose.file_size(run.checkpoint(step)) for step in steps)
    free = shutil.disk_usage(run.path).free
    image = newest.bytes if newest else checkpoint.file_size(made.model.n_params) if made else 0
    latest = None
    if newest and newest.companion:
        written = [e for e in said if e["event"] == "checkpoint" and e.get("step") == newest.step]
        age = events.age(written[-1]) if written else time.time() - newest.companion.t
        latest = {
            "step": newest.step,
            "path": str(run.checkpoint(newest.step)),
            "bytes": newest.bytes,
            "sha256": newest.companion.sha256,
            "age_seconds": max(0.0, age),
            "reasons": list(newest.companion.reasons),
        }
    kept = {"count": len(steps), "bytes": total, "pinned": len(pins & set(steps))}
    disk = {"free_bytes": free, "more_checkpoints": free // image if image else None}
    return {"checkpoint": latest, "kept": kept, "disk": disk}


def _policy(run: RunDirectory, reader: Reader, step: int) -> Table | None:
    """Return the policy that the next step runs under."""
    policies = reader.attempt(run.policy, lambda: policy.read_policies(run.policy)) or []
    if not policies:
        return None
    now = policy.policy_at(policies, step + 1)
    return {"id": now.id, "algorithm": now.algorithm, "begins_after": now.begins_after}


def _sources(run: RunDirectory, reader: Reader, made: Settings | None, policy_id: str) -> Table:
    """Return the arms as of the last checkpoint; what has no live source is a zombie."""
    state = reader.table(run.state)
    if policy_id and loose.text(state.get("policy")) not in ("", policy_id):
        state = {}  # of a policy that a pivot has ended
    arms = loose.table(state.get("arms"))
    live = made.source_names() if made else tuple(arms)
    pulls = {name: loose.whole(loose.table(arms.get(name)).get("pulls")) for name in live}
    total = sum(pulls.values())
    sources = []
    for name in live:
        arm = loose.table(arms.get(name))
        keys = ("tokens", "epochs", "ema_loss", "ema_reward", "weight", "probability")
        numbers = {key: loose.number(arm.get(key)) for key in (*keys, "cap", "floor")}
        share = pulls[name] / total if total else None
        sources.append({"name": name, "pulls": pulls[name], "share": share, **numbers})
    held = loose.table(state.get("zombies")) | {name: arms[name] for name in arms}
    zombies = [
        {
            "name": name,
            "pulls": loose.whole(loose.table(held[name]).get("pulls")),
            "weight": loose.number(loose.table(held[name]).get("weight")),
        }
        for name in sorted(held)
        if name not in live
    ]
    phase = loose.table(state.get("phase"))
    told: Table = {"name": loose.text(phase.get("name"))}
    told |= {key: loose.number(phase.get(key)) for key in ("steps", "of")}
    return {
        "curriculum_phase": told if phase else None,
        "sources": sources,
        "zombies": [arm["name"] for arm in zombies],
        "zombie_arms": zombies,
    }


def _validation(run: RunDirectory, reader: Reader) -> Table | None:
    """Return the validation losses of the last audit."""
    audits = loose.tables(reader.table(run.samples).get("audits"))
    if not audits:
        return None
    losses = loose.table(audits[-1].get("validation"))
    return {
        "step": loose.whole(audits[-1].get("step")),
        "mean": loose.number(audits[-1].get("mean")),
        "sources": {name: loose.number(loss) for name, loss in losses.items()},
    }


def _requests(run: RunDirectory, reader: Reader) -> list[Table]:
    """Return the requests that wait for the daemon."""
    if not run.requests.is_dir():
        return []
    paths = reader.attempt(run.requests, lambda: sorted(run.requests.glob("*.json"))) or []
    found = []
    for path in paths:
        asked = reader.table(path)
        found.append({"id": path.stem, "at": asked.get("at"), "hold": asked.get("hold") is True})
    return found


def _pivot(run: RunDirectory, reader: Reader) -> Table | None:
    """Return the pivot in flight or left behind: its journal, who makes it, and how far it is."""
    journal = reader.table(run.pivot)
    if not journal:
        return None
    known = reader.attempt(run.pivot, lambda: pivot.read(run))
    policies = reader.attempt(run.policy, lambda: policy.read_policies(run.policy))
    pid = reader.attempt(run.pivot_lock, lambda: lock.holder(run.pivot_lock))
    doing = reader.attempt(run.pivot_lock, lambda: lock.describe(run.pivot_lock)) or {}
    return {
        **{key: journal.get(key) for key in ("step", "archive", "t", "at", "running")},
        "pid": pid,
        "doing": {key: doing.get(key) for key in ("step", "doing")} if pid else None,
        "committed": known.committed(policies) if known and policies else None,
    }


def _lineage(run: RunDirectory, reader: Reader) -> Table | None:
    """Return what the run is a fork of."""
    record = reader.attempt(run.lineage, lambda: lineage.read(run.lineage))
    if record is None:
        return None
    told: Table = {key: getattr(record, key) for key in ("id", "parent", "step", "sha256", "t")}
    return told | {"changes": list(record.changes)}


def _events(run: RunDirectory, reader: Reader) -> list[Table]:
    """Return the latest events."""

    def read() -> list[Table]:
        return list(events.read(run.events, max(0, run.events.stat().st_size - _EVENTS_TAIL)))

    return reader.attempt(run.events, read) or []


def _told(said: list[Table]) -> dict[str, Any]:
    """Return what the events since the last start say, and the last verdict of a replay."""
    recent = said[_last_life(said) :]
    kinds = [event["event"] for event in recent]

    def last(kind: str, among: list[Table]) -> Table | None:
        return next((event for event in reversed(among) if event["event"] == kind), None)

    return {
        "replay": last("replay", said),
        "stopped": last("stopped", recent),
        "finished": "finished" in kinds,
        "trouble": [event for event in _unhealed(recent) if event["event"] in _TROUBLE][-5:],
        "skipped_steps": kinds.count("skipped"),
        "spikes": kinds.count("spike"),
    }


def _unhealed(said: list[Table]) -> list[Table]:
    """Return the events without the faults that have healed since."""
    healed = {
        loose.text(event.get("what")): index
        for index, event in enumerate(said)
        if event["event"] == "healed"
    }
    return [
        event
        for index, event in enumerate(said)
        if event["event"] != "fault" or index > healed.get(loose.text(event.get("what")), -1)
    ]


def _last_life(said: list[Table]) -> int:
    """Return where the last life of a daemon begins: what it found comes before `started`."""
    starts = [index for index, event in enumerate(said) if event["event"] == "started"]
    begin = starts[-1] if starts else 0
    while begin and said[begin - 1]["event"] in _FINDINGS:
        begin -= 1
    return begin
