"""From process start to the first step, and what compiling changes.

    python -m tests.bench.start_speed [DIRECTORY]

Real daemons: each is started on a run with a checkpoint, and stopped after some steps.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from andread.rundir import events, history
from andread.rundir.layout import RunDirectory
from tests.bench.runs import ROOT, make_run, python
from tests.bench.table import Row, median, show, timed

STEPS = 12


def live(run: RunDirectory, steps: int, environment: dict[str, str] | None = None) -> None:
    """Let a daemon train `steps` steps more, and stop it."""
    goal = len(list(history.read(run.history))) + steps if run.history.exists() else steps
    process = subprocess.Popen(
        [sys.executable, "-m", "andread", "--run", str(run.path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | (environment or {}),
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None:
        last = history.tail(run.history, 1) if run.history.exists() else []
        if last and last[0]["step"] >= goal:
            process.send_signal(signal.SIGTERM)
            break
        time.sleep(0.02)
    assert process.wait() == 0


def last_event(run: RunDirectory, kind: str) -> dict[str, Any]:
    return [event for event in events.read(run.events) if event["event"] == kind][-1]


def start(run: RunDirectory) -> list[Row]:
    """Measure process start to the first step's beginning, without importing torch."""
    live(run, 3)
    found = []
    for _ in range(9):
        importing = timed(lambda: python("-c", "import torch"))
        live(run, 2)
        found.append(last_event(run, "started")["seconds"] - importing)
    return [
        Row(
            "process start to ready for the first step, beyond `import torch`",
            f"{median(found):.2f} s [{min(found):.2f}, {max(found):.2f}]",
            "≤ 0.3 s",
        )
    ]


def compiled(run: RunDirectory, place: Path) -> list[Row]:
    """Measure the same steps eager and compiled, deterministic both; twice compiled for bits."""
    paces, firsts, losses = {}, {}, {}
    for name in ("eager", "compiled", "compiled again"):
        copy = RunDirectory(place / name.replace(" ", "_"))
        shutil.copytree(run.path, copy.path)
        text = copy.settings.read_text(encoding="utf-8")
        if name != "eager":
            assert "compile = false" in text
            text = text.replace("compile = false", "compile = true")
        copy.settings.write_text(text, encoding="utf-8")
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(place / f"cache-{name.replace(' ', '-')}")}
        live(copy, STEPS, cache)
        entries = list(history.read(copy.history))[-STEPS:]
        gaps = [b["t"] - a["t"] for a, b in itertools.pairwise(entries[1:])]
        paces[name], firsts[name] = median(gaps), last_event(copy, "first_step")["seconds"]
        losses[name] = [entry["loss"] for entry in entries]
        shutil.rmtree(copy.path)
    same = losses["compiled"] == losses["compiled again"]
    return [
        Row(
            "compiled against eager, deterministic both: times as fast",
            f"{paces['eager'] / paces['compiled']:.2f} ×; first step after "
            f"{firsts['compiled']:.0f} s instead of {firsts['eager']:.1f} s",
            "reported",
        ),
        Row(
            "bits of two compiled processes, each with a cache of its own",
            "equal" if same else "NOT EQUAL",
            "equal",
        ),
    ]


def measure(place: Path) -> list[Row]:
    run = make_run(place / "run")
    return [*start(run), *compiled(run, place)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        show("Starting", measure(Path(name)))
