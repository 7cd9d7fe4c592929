"""The pivot and its daemon killed at every stage, and others who interfere."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from andread.rundir import clock, companion, events, lock, pivot, presence, requests
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import read_policies
from andread.rundir.requests import Request

from .harness import count, find, last_step, train
from .pivoting import (
    ROOT,
    SIDECARS,
    andrectl,
    commit_is_pinned,
    every_step_once,
    finish,
    killed,
    set_steps,
    shares,
    spawn,
    until,
    without_cadence,
)

BEFORE_THE_COMMIT = [
    "andread.rundir.pivot.write after 1",
    "andread.rundir.requests.write after 1",
    "andrectl.asking.acknowledged after 1",
    "andrectl.supervisor.stop before 1",
    "andrectl.supervisor.stop after 1",
    "andrectl.boundary.found after 1",
    "andread.rundir.pivot.write before 2",
    "andread.rundir.pivot.write after 2",
    "andread.rundir.commit.pin after 1",
    "andread.rundir.pivot._copy after 1",
    "andread.rundir.pivot.write_manifest after 1",
    "andrectl.boundary.history_problem after 2",
    "andread.rundir.policy.write_policies before 1",
]
AFTER_THE_COMMIT = [
    "andread.rundir.policy.write_policies after 1",
    "andread.rundir.events.emit after 1",
    "andrectl.supervisor.start after 1",
    "andrectl.proving.proof after 1",
    "andread.rundir.pivot.remove before 1",
]


def test_killed_at_every_stage_before_the_commit_and_given_up(live: RunDirectory) -> None:
    """One run, its pivot killed at each stage in turn, and given up each time."""
    policies = read_policies(live.policy)
    for number, stage in enumerate(BEFORE_THE_COMMIT):
        before = last_step(live)
        killed(live, stage, "pivot", "--caps", "topics=0.3", "--at", "step")
        assert read_policies(live.policy) == policies, stage
        assert pivot.read(live) is not None, stage
        assert "--abort" in andrectl(live, "pivot", "--caps", "topics=0.4", code=75), stage
        if number % 4 == 1 and lock.holder(live.lock) is None:
            andrectl(live, "start")  # by hand, by systemd, at a reboot
        andrectl(live, "pivot", "--abort")
        assert pivot.read(live) is None and pivot.archives(live) == [], stage
        assert read_policies(live.policy) == policies, stage
        assert not list(live.requests.glob("*.json")), stage
        until(lambda: last_step(live) > before)  # noqa: B023 - called at once
    assert not live.pins.exists() or not list(live.pins.iterdir())
    andrectl(live, "stop")
    assert every_step_once(live)


def test_killed_at_every_stage_before_the_commit_and_gone_on_with(live: RunDirectory) -> None:
    for number, stage in enumerate(BEFORE_THE_COMMIT):
        killed(live, stage, "pivot", "--caps", f"topics={0.2 + number / 20}", "--at", "step")
        told = json.loads(andrectl(live, "pivot", "--resume", "--json"))
        assert told["proof"]["problems"] == [], stage
        policies = read_policies(live.policy)
        assert len(policies) == number + 2 and policies[-1].begins_after == told["step"], stage
        assert len(pivot.archives(live)) == number + 1, stage
    andrectl(live, "stop")
    assert every_step_once(live)
    assert find(live, "replay") is None, "no step was computed twice"


def test_killed_at_every_stage_after_the_commit(still: RunDirectory) -> None:
    for number, stage in enumerate(AFTER_THE_COMMIT):
        set_steps(still, 40 + 10 * number)
        held = {name: (still.path / name).read_bytes() for name in SIDECARS}
        killed(still, stage, "pivot", "--caps", f"topics={0.3 + number / 10}")
        policies = read_policies(still.policy)
        assert len(policies) == number + 2, stage
        told = json.loads(andrectl(still, "pivot", "--resume", "--json"))
        assert told["proof"]["problems"] == [] and told["policy"]["new"] == policies[-1].id, stage
        finish(still)
        assert read_policies(still.policy) == policies and pivot.read(still) is None, stage
        assert count(still, "pivot", policy=policies[-1].id) == 1, stage
        for name, data in held.items():
            assert (still.archive / told["archive"] / name).read_bytes() == data, stage
        assert last_step(still) == 40 + 10 * number and every_step_once(still), stage


def test_an_abort_after_the_commit_gives_everything_back(still: RunDirectory) -> None:
    names = (*SIDECARS, ".loss.json")
    held = {name: (still.path / name).read_bytes() for name in names}
    for stage in ("write_policies before 1", "write_policies after 1"):
        killed(still, f"andread.rundir.policy.{stage}", "pivot", "--caps", "topics=0.3")
        if stage.endswith("after 1"):
            killed(still, "andread.rundir.policy.write_policies before 1", "pivot", "--abort")
            killed(still, "andread.rundir.policy.write_policies after 1", "pivot", "--abort")
        andrectl(still, "pivot", "--abort")
        assert {name: (still.path / name).read_bytes() for name in names} == held
        assert lock.holder(still.lock) is None, "it was found stopped"
        assert pivot.read(still) is None and pivot.archives(still) == []
    train(still)
    verdict = shares(still, 30)
    assert verdict["topics"] == pytest.approx(0.5, abs=0.1)


# The daemon killed, and others who interfere.


def test_the_daemon_killed_while_it_is_waited_for(live: RunDirectory) -> None:
    policies = read_policies(live.policy)
    without_cadence(live)
    for number, kills in ((signal.SIGTERM, "asked to stop"), (signal.SIGKILL, "it was killed")):
        process = spawn(live, "pivot", "--caps", "topics=0.3")
        until(lambda: list(live.requests.glob("pivot-*.json")))
        time.sleep(0.3)
        lock.signal_holder(live.lock, number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 3 and kills in err and "the pivot is off" in err
        assert pivot.read(live) is None and read_policies(live.policy) == policies
        assert lock.holder(live.lock) is None, "what stopped it is not undone"
        if number is signal.SIGTERM:
            andrectl(live, "start")
    told = json.loads(andrectl(live, "pivot", "--caps", "topics=0.3", "--at", "step", "--json"))
    assert told["proof"]["problems"] == []
    andrectl(live, "stop")
    assert every_step_once(live)


def test_a_limit_takes_the_pivot_back_and_the_run_goes_on(live: RunDirectory) -> None:
    without_cadence(live)
    told = andrectl(live, "pivot", "--caps", "topics=0.3", "--timeout", "0.5", code=75)
    assert "the pivot is off" in told
    assert pivot.read(live) is None and len(read_policies(live.policy)) == 1
    before = last_step(live)
    until(lambda: last_step(live) > before + 5)


def test_a_snapshot_and_a_pivot_at_once(live: RunDirectory) -> None:
    until(lambda: last_step(live) > 0)
    snapshot = spawn(live, "snapshot", "--at", "cadence", "--json")
    until(lambda: list(live.requests.glob("snapshot-*")) or find(live, "acknowledged"))
    told = json.loads(andrectl(live, "pivot", "--caps", "topics=0.3", "--json"))
    out, err = snapshot.communicate(timeout=60)
    assert snapshot.returncode == 0, err
    kept = json.loads(out)["step"]
    assert commit_is_pinned(live, kept) and commit_is_pinned(live, told["step"])


def test_the_daemon_killed_while_it_holds(live: RunDirectory) -> None:
    """The boundary is durable: the pivot goes on from it."""
    until(lambda: last_step(live) > 0)
    killed(live, "andrectl.supervisor.stop before 1", "pivot", "--caps", "topics=0.3")
    script = (
        "import os, signal, sys\n"
        "from andread.rundir import lock\n"
        "from andread.rundir.layout import RunDirectory\n"
        "from andrectl import awaiting, supervisor\n"
        "def stop(run, timeout):\n"
        "    pid = lock.signal_holder(run.lock, signal.SIGKILL)\n"
        "    awaiting.wait(lambda: lock.holder(run.lock) != pid, 30, lambda: None, '', '')\n"
        "supervisor.stop = stop\n"
        "from andrectl.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    line = [sys.executable, "-c", script, "--run", str(live.path), "pivot", "--resume", "--json"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (
        told["proof"]["problems"] == [] and told["proof"]["first_step"]["step"] == told["step"] + 1
    )
    andrectl(live, "stop")
    assert every_step_once(live)


def test_a_stop_while_holding_trains_no_step(live: RunDirectory) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import sys; from pathlib import Path; from andread.rundir.lock import RunLock;"
            "lock = RunLock.acquire(Path(sys.argv[1])); print('held', flush=True);"
            "sys.stdin.read()",
            str(live.pivot_lock),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    try:
        told = presence.read(live.lock)
        requests.write(
            live,
            Request("p", told.boot, told.pid, told.ticks, clock.boot_seconds() + 60, hold=True),
        )
        lock.signal_holder(live.lock, signal.SIGUSR1)
        step = until(lambda: find(live, "holding"))["step"]
        andrectl(live, "stop")
        assert last_step(live) == step == companion.read(live.companion(step)).step
    finally:
        process.kill()
        process.communicate()


def test_two_pivots_at_once_make_one(live: RunDirectory) -> None:
    both = [spawn(live, "pivot", "--caps", f"topics={cap}") for cap in (0.3, 0.4)]
    codes = []
    for process in both:
        process.communicate(timeout=120)
        codes.append(process.returncode)
    assert sorted(codes) == [0, 75]
    assert len(read_policies(live.policy)) == 2
    assert [event["event"] for event in events.read(live.events)].count("pivot") == 1
