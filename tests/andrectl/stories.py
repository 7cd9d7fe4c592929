"""Runs with a story to draw and to export: pivots, restarts, faults, spikes, skipped steps."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson

from andread.rundir import files
from andread.rundir.history import LossHistory
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import Policy, write_policies
from andrectl.template import RECIPES, run_toml

NAMES = ("books", "code", "web")
CAPS = {"code": 0.3, "web": 0.5}
FLOORS = {"books": 0.1}


def entry(step: int, pivot: int, dice: random.Random) -> dict[str, Any]:
    shares = (1, 1, 1) if step <= pivot else (1, 3, 6)
    drawn = dice.choices(NAMES, shares, k=12)
    made = {
        "step": step,
        "loss": 3.0 + 4.0 / (1 + step / 50) + dice.gauss(0, 0.02),
        "lr": 1e-3 / step,
        "grad_norm": 0.5 + dice.random() / 10,
        "pulls": {name: drawn.count(name) for name in NAMES if name in drawn},
        "t": 1_000_000.0 + 10 * step,
    }
    if step % 97 == 0:
        made |= {"loss": None, "skipped": "nonfinite"}
    if step % 101 == 0:
        made["skipped"] = "overflow"
    if step == 333:
        made |= {"loss": 50.0, "grad_norm": 40.0}
    return made


def event(kind: str, step: int | None, t: float, **more: Any) -> dict[str, Any]:
    at = {} if step is None else {"step": step}
    return {"event": kind, "t": 1_000_000.0 + t, "boot": "b", "up": t, **at, **more}


def story(path: Path, steps: int = 500, pivot: int = 200, seed: int = 1) -> RunDirectory:
    """Make a run of `steps` recorded steps with a pivot, and no checkpoint."""
    run = RunDirectory(path)
    path.mkdir(parents=True)
    sources = [{"name": name, "paths": [f"{name}.txt"]} for name in NAMES]
    toml = run_toml("andrea-nano", RECIPES["andrea-nano"], 1, sources)
    files.replace(run.settings, toml.encode())
    write_policies(run.policy, [Policy(), Policy(begins_after=pivot, caps=CAPS, floors=FLOORS)])
    dice = random.Random(seed)
    history = LossHistory.create(run.history)
    for step in range(1, steps + 1):
        history.record(entry(step, pivot, dice))
    history.close()
    said = [event("started", 0, 1.0), event("checkpoint", 0, 2.0, sha256="0" * 64)]
    for step in range(100, steps + 1, 100):
        losses = {name: 5.0 - step / 1000 + place / 10 for place, name in enumerate(NAMES)}
        mean = sum(losses.values()) / 3
        said.append(event("audit", step, 10.0 * step + 1, validation=losses, mean=mean, seconds=1))
    said += [
        event("pivot", pivot, 10.0 * pivot + 2, policy="new"),
        event("started", pivot, 10.0 * pivot + 3),
        event("fault", None, 10.0 * 250 + 1, what="checkpoint", detail="the disk is full"),
        event("spike", 333, 3330.5, loss=50.0),
        event("forked", 400, 4000.5, fork="there"),
    ]
    said.sort(key=lambda e: float(e["t"]))
    run.events.write_bytes(b"".join(orjson.dumps(e) + b"\n" for e in said))
    return run
