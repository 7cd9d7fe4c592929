"""andrectl and the real daemon: a run's life from the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from andread.rundir import events, lock
from andread.rundir.layout import RunDirectory

from .harness import copy_run, make_run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
EVERY = 10


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return make_run(tmp_path_factory.mktemp("prepared") / "run", steps=100_000, every=EVERY, keep=3)


@pytest.fixture
def run(prepared: RunDirectory, tmp_path: Path) -> Iterator[RunDirectory]:
    copy = copy_run(prepared, tmp_path / "run")
    yield copy
    lock.signal_holder(copy.lock, signal.SIGKILL)


def andrectl(run: RunDirectory, *arguments: object, code: int = 0) -> str:
    """Run andrectl on `run`, expect the exit code, return stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "andrectl", "--run", str(run.path), *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if "--json" in arguments else done.stdout + done.stderr


def status(run: RunDirectory, code: int) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(andrectl(run, "status", "--json", code=code))
    return told


def wait_for_step(run: RunDirectory, step: int) -> None:
    deadline = time.monotonic() + 120
    while status(run, 0)["step"] < step:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def set_steps(run: RunDirectory, steps: int) -> None:
    text = run.settings.read_text()
    run.settings.write_text(text.replace("steps = 100000", f"steps = {steps}", 1))


def test_a_life_from_the_command_line(run: RunDirectory) -> None:
    assert "training since step 0" in andrectl(run, "start")
    told = status(run, 0)
    assert told["state"] == "running" and told["damaged"] == []
    assert told["supervisor"]["kind"] == "detached"
    andrectl(run, "start", code=75)

    now = json.loads(andrectl(run, "snapshot", "--json"))
    assert Path(now["path"]) == run.checkpoint(now["step"])
    cadence = json.loads(andrectl(run, "snapshot", "--at", "cadence", "--no-pin", "--json"))
    assert cadence["step"] % EVERY == 0 and cadence["step"] > 0
    rows = json.loads(andrectl(run, "checkpoints", "--json"))["checkpoints"]
    (pinned,) = [row for row in rows if row["pinned"]]
    assert (pinned["step"], pinned["sha256"]) == (now["step"], now["sha256"])

    wait_for_step(run, 2 * EVERY)
    assert "validation loss" in andrectl(run, "samples")
    assert "exit code 0" in andrectl(run, "stop")
    told = status(run, 3)
    assert told["checkpoint"]["step"] == told["recorded_step"] == told["step"]
    assert told["validation"]["step"] % EVERY == 0 and told["damaged"] == []
    assert sum(source["pulls"] for source in told["sources"]) == 8 * told["step"]

    set_steps(run, told["step"] + 3)
    assert f"training since step {told['step']}" in andrectl(run, "start")
    while lock.holder(run.lock) is not None:
        time.sleep(0.1)
    assert status(run, 3)["finished"]
    assert "finished" in andrectl(run, "start")


def test_a_killed_run_is_replayed_and_says_so(run: RunDirectory) -> None:
    andrectl(run, "start")
    wait_for_step(run, EVERY + 3)
    lock.signal_holder(run.lock, signal.SIGKILL)
    while lock.holder(run.lock) is not None:
        time.sleep(0.05)
    told = status(run, 3)
    recorded, durable = told["recorded_step"], told["checkpoint"]["step"]
    assert "training since step" in andrectl(run, "start")
    wait_for_step(run, recorded + 1)
    replay = status(run, 0)["replay"]
    if durable < recorded:
        assert (replay["from"], replay["to"]) == (durable + 1, recorded)
        assert replay["verdict"] == "exact"
    else:
        assert replay is None
    assert "stopped after step" in andrectl(run, "stop")


def test_a_run_without_tokens_says_what_to_do(run: RunDirectory) -> None:
    shutil.rmtree(run.data)
    told = andrectl(run, "start", code=66)
    assert "has no tokens yet" in told and "andrectl prepare" in told
    assert "next: andrectl prepare" in andrectl(run, "status", code=3)


def test_a_history_that_was_changed_needs_consent(run: RunDirectory) -> None:
    andrectl(run, "start")
    wait_for_step(run, 3)
    andrectl(run, "stop")
    content = run.history.read_bytes()
    run.history.write_bytes(content.replace(b'"step":1,"loss":', b'"step":1,"Loss":', 1))
    assert "--accept-history" in andrectl(run, "start", code=65)
    andrectl(run, "start", "--accept-history")
    assert [event["event"] for event in status(run, 0)["trouble"]] == ["history_fault"]
    andrectl(run, "stop")


def test_training_goes_on_from_an_import(run: RunDirectory, prepared, tmp_path: Path) -> None:
    andrectl(run, "start")
    wait_for_step(run, 3)
    andrectl(run, "stop")
    step = status(run, 3)["step"]
    other = copy_run(prepared, tmp_path / "other")
    andrectl(other, "import", run.checkpoint(step))
    try:
        assert f"training since step {step}" in andrectl(other, "start")
        wait_for_step(other, step + 3)
        andrectl(other, "stop")
    finally:
        lock.signal_holder(other.lock, signal.SIGKILL)
    kinds = [event["event"] for event in events.read(other.events)]
    assert "rejected" not in kinds
    assert status(other, 3)["recorded_step"] >= step + 3


def test_in_the_foreground_andrectl_becomes_the_daemon(run: RunDirectory) -> None:
    line = [sys.executable, "-m", "andrectl", "start", "--foreground", "--run", str(run.path)]
    with subprocess.Popen(line, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not list(events.read(run.events)) and time.monotonic() < deadline:
            time.sleep(0.1)
        told = status(run, 0)
        assert (told["pid"], told["supervisor"]["kind"]) == (process.pid, "foreground")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
