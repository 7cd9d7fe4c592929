"""What the tests of pivots share: andrectl as a process, and a look at what a run has become."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from andread.rundir import lock
from andread.rundir.layout import RunDirectory

from .harness import entries

ROOT = Path(__file__).parents[2]
EVERY = 10
SIDECARS = (".samples.json", ".state.json", "policy.json")
Table = dict[str, Any]


def set_steps(run: RunDirectory, steps: int) -> None:
    lines = run.settings.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [f"steps = {steps}\n" if line.startswith("steps =") else line for line in lines]
    run.settings.write_text("".join(kept), encoding="utf-8")


def andrectl(run: RunDirectory, *arguments: object, code: int = 0) -> str:
    """Run andrectl on `run`, expect its exit code, return what it printed."""
    done = spawn(run, *arguments)
    out, err = done.communicate(timeout=180)
    assert done.returncode == code, out + err
    return out if "--json" in arguments else out + err


def spawn(run: RunDirectory, *arguments: object, kill: str = "") -> subprocess.Popen[str]:
    """Start andrectl on `run`; with `kill` it dies at that place."""
    deadly = ["tests.process.killing", *kill.split()] if kill else ["andrectl"]
    return subprocess.Popen(
        [sys.executable, "-m", *deadly, *map(str, arguments), "--run", str(run.path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def killed(run: RunDirectory, kill: str, *arguments: object) -> None:
    """Run andrectl until it is killed at the place `kill`."""
    done = spawn(run, *arguments, kill=kill)
    out, err = done.communicate(timeout=180)
    assert done.returncode == -signal.SIGKILL, f"{kill} was not reached:\n{out}{err}"


def until(condition: Any, timeout: float = 60) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)
    return found


def without_cadence(run: RunDirectory) -> None:
    """Start a live run again with regular checkpoints too far away to be met."""
    andrectl(run, "stop")
    text = run.settings.read_text(encoding="utf-8")
    every = f"checkpoint_every = {EVERY}"
    run.settings.write_text(text.replace(every, "checkpoint_every = 9999999"), encoding="utf-8")
    andrectl(run, "start")


def finish(run: RunDirectory) -> None:
    """Wait until the daemon of a run that ends has ended."""
    until(lambda: lock.holder(run.lock) is None)


def shares(run: RunDirectory, after: int, upto: int | None = None) -> dict[str, float]:
    """Return what each source got of the pulls after a step."""
    pulls: Counter[str] = Counter()
    for entry in entries(run)[after:upto]:
        pulls.update(entry["pulls"])
    return {name: n / sum(pulls.values()) for name, n in pulls.items()}


def every_step_once(run: RunDirectory) -> bool:
    steps = [entry["step"] for entry in entries(run)]
    return steps == list(range(1, len(steps) + 1))


def commit_is_pinned(run: RunDirectory, step: int) -> bool:
    return run.pin(step).exists() and run.checkpoint(step).exists()
