"""Runs to measure: `andrea-12m` on the example corpus, four sequences of 128 tokens a step.

At its own context of 1,024 a step takes nine seconds on two cores; the shape is the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from andread.curriculum.prepare import prepare
from andread.daemon import startup
from andread.daemon.notify import Notifier
from andread.daemon.report import DaemonReporter
from andread.daemon.service import Options
from andread.daemon.signals import Signals
from andread.daemon.supervision import supervisor
from andread.rundir.early import EarlyRead
from andread.rundir.layout import RunDirectory
from andread.rundir.lock import RunLock
from andread.rundir.policy import Policy, write_policies
from andread.rundir.run_toml import read_settings
from andread.trainer import Trainer
from andrectl.example import write_example
from andrectl.template import RECIPES, run_toml

ROOT = Path(__file__).parents[2]


def make_run(path: Path, preset: str = "andrea-12m") -> RunDirectory:
    """Make and prepare a run under the bandit that checkpoints every 100 steps."""
    path.mkdir(parents=True)
    run = RunDirectory(path)
    sources = write_example(path)
    text = run_toml(preset, RECIPES[preset], 100_000, sources)
    text = text.replace(f'preset = "{preset}"', f'preset = "{preset}"\ncontext = 128', 1)
    lines = ["batch = 4" if line.startswith("batch = ") else line for line in text.splitlines()]
    run.settings.write_text("\n".join(lines), encoding="utf-8")
    write_policies(run.policy, [Policy(algorithm="ucb")])
    prepare(run, read_settings(run.settings))
    return run


def assemble(run: RunDirectory) -> Trainer:
    """Return the trainer that the daemon would have, with all that it tells and records."""
    signals = Signals()
    lock = RunLock.acquire(run.lock, 1.0, signals.stopping)
    reporter = DaemonReporter(run, lock, supervisor(), Notifier(), log_every=10)
    settings = read_settings(run.settings)
    trainer = startup.assemble(run, settings, Options(), lock, signals, reporter, EarlyRead(run))
    assert trainer is not None
    return trainer


def python(*arguments: str) -> None:
    """Run a Python process over this working tree to its end."""
    subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
