"""The polish pivot with real daemons: proven, bit for bit, and killed at every stage."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from andread.rundir import clock, companion, events, lock, pivot, presence, requests, samples
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import Policy, read_policies, write_policies
from andread.rundir.requests import Request

from .harness import copy_run, count, entries, find, image, last_step, make_run, train

ROOT = Path(__file__).parents[2]
EVERY = 10
SIDECARS = (".samples.json", ".state.json", "policy.json")
Table = dict[str, Any]


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run that will not end by itself; copy it."""
    return make_run(tmp_path_factory.mktemp("endless") / "run", steps=1_000_000, every=EVERY)


@pytest.fixture
def live(endless: RunDirectory, tmp_path: Path) -> Iterator[RunDirectory]:
    """A copy of it that is being trained."""
    run = copy_run(endless, tmp_path / "run")
    andrectl(run, "start")
    yield run
    lock.signal_holder(run.lock, signal.SIGKILL)


@pytest.fixture(scope="module")
def at_30(prepared: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of 30 steps that is finished; copy it."""
    run = copy_run(prepared, tmp_path_factory.mktemp("at_30") / "run")
    set_steps(run, 30)
    train(run)
    return run


@pytest.fixture
def still(at_30: RunDirectory, tmp_path: Path) -> Iterator[RunDirectory]:
    """That run after 30 of its 60 steps."""
    run = copy_run(at_30, tmp_path / "still")
    set_steps(run, 60)
    yield run
    lock.signal_holder(run.lock, signal.SIGKILL)


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


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# End to end.


def test_a_live_run_is_pivoted_and_it_is_proven(live: RunDirectory) -> None:
    until(lambda: last_step(live) > EVERY)
    told: Table = json.loads(
        andrectl(live, "pivot", "--caps", "topics=0.2", "--set", "optimizer.lr=1e-3", "--json")
    )
    step, proof = told["step"], told["proof"]
    assert step % EVERY == 0 and proof["problems"] == []
    assert last_step(live) > step
    andrectl(live, "stop")

    assert every_step_once(live)
    folder = live.archive / told["archive"]
    for name in SIDECARS:
        assert sha256((folder / name).read_bytes()) == told["files"][name]["sha256"]
    assert json.loads((folder / ".state.json").read_bytes())["step"] == step
    old = read_policies(live.policy)[0].id
    audits = json.loads((folder / ".samples.json").read_bytes())
    assert audits["policy"] == old and audits["audits"][-1]["step"] == step

    _, _, weights, m, v = image(live.checkpoint(step))
    hashes = {"weights": sha256(weights), "m": sha256(m), "v": sha256(v)}
    assert {name: told["checkpoint"][name] for name in hashes} == hashes
    assert {name: proof["checkpoint"][name] for name in hashes} == hashes
    assert proof["sha256"] == sha256(live.checkpoint(step).read_bytes())
    prefix = live.history.read_bytes()[: told["history"]["bytes"]]
    assert sha256(prefix) == told["history"]["sha256"] == proof["history"]["sha256"]
    assert prefix.count(b'"step"') == told["history"]["entries"] == step

    new = read_policies(live.policy)[1]
    assert samples.read(live.samples)["policy"] == new.id
    audited = [audit["step"] for audit in samples.read(live.samples)["audits"]]
    assert audited[0] == step, "audited anew, as what the new policy begins from"
    state = json.loads(live.state.read_bytes())
    assert state["policy"] == new.id
    pulled = sum(arm["pulls"] for arm in state["arms"].values())
    assert pulled == 8 * (state["step"] - step)
    rates = [entry["lr"] for entry in entries(live)]
    assert rates[step] == pytest.approx(rates[step - 1] / 3, rel=0.1)
    assert commit_is_pinned(live, step)


def commit_is_pinned(run: RunDirectory, step: int) -> bool:
    return run.pin(step).exists() and run.checkpoint(step).exists()


def test_the_shares_after_a_pivot_obey_its_bounds(still: RunDirectory) -> None:
    set_steps(still, 90)
    andrectl(still, "pivot", "--caps", "topics=0.2", "--floors", "license=0.7")
    finish(still)
    before, after = shares(still, 0, 30), shares(still, 30)
    assert before["topics"] == pytest.approx(0.5, abs=0.1)
    assert after["topics"] == pytest.approx(0.2, abs=0.06)


def test_bit_for_bit_it_is_a_start_with_the_new_policy(
    still: RunDirectory, at_30: RunDirectory, tmp_path: Path
) -> None:
    """Batch, rate and caps change: as in a copied directory whose policy.json says so."""
    change = ["--caps", "topics=0.3", "--set", "optimizer.batch=12", "--set", "optimizer.clip=0.5"]
    andrectl(still, "pivot", *change, "--set", "optimizer.lr=1e-3")
    finish(still)
    other = copy_run(at_30, tmp_path / "other")
    set_steps(other, 60)
    values = {"optimizer.batch": 12, "optimizer.clip": 0.5, "optimizer.lr": 1e-3}
    second = Policy(begins_after=30, caps={"topics": 0.3}, overrides=values)
    write_policies(other.policy, [*read_policies(other.policy), second])
    train(other)
    assert entries(still) == entries(other)
    assert still.checkpoint(60).read_bytes() == other.checkpoint(60).read_bytes()
    assert {sum(entry["pulls"].values()) for entry in entries(still)[30:]} == {12}


def test_there_and_back_starts_with_a_fresh_bandit_each_time(still: RunDirectory) -> None:
    write_policies(still.policy, [Policy()])
    for number, (steps, arguments) in enumerate(
        [(40, ["--caps", "topics=0.3"]), (60, ["--caps", "topics=1"])]
    ):
        set_steps(still, steps)
        told = json.loads(andrectl(still, "pivot", *arguments, "--json"))
        finish(still)
        assert told["proof"]["pulls"] == 0 and told["step"] == (30, 40)[number]
    first, second, third = read_policies(still.policy)
    assert dataclasses.replace(third, begins_after=0) == first
    assert len({first.id, second.id, third.id}) == 3
    arms = companion.read(still.companion(60)).curriculum["mixer"]["arms"]
    assert sum(arm["pulls"] for arm in arms.values()) == 8 * 20


def test_a_fall_back_before_the_pivot_replays_the_old_policy_exactly(still: RunDirectory) -> None:
    andrectl(still, "pivot", "--caps", "topics=0.2", "--set", "optimizer.batch=12")
    finish(still)
    for step in (30, 40, 50, 60):
        data = bytearray(still.checkpoint(step).read_bytes())
        data[100] ^= 1
        still.checkpoint(step).write_bytes(data)
    before = still.history.read_bytes()
    set_steps(still, 62)
    train(still)
    verdict = find(still, "replay")
    assert verdict is not None and verdict["verdict"] == "exact"
    assert (verdict["from"], verdict["to"]) == (21, 60)
    assert find(still, "policy", step=30) is not None
    assert still.history.read_bytes()[: len(before) - 3] == before[:-3]
    assert every_step_once(still) and last_step(still) == 62
    audits = samples.read(still.samples)
    assert audits["policy"] == read_policies(still.policy)[1].id
    assert [audit["step"] for audit in audits["audits"]] == [30, 40, 50, 60]


def test_a_finished_run_is_proven_by_loading(at_30: RunDirectory, tmp_path: Path) -> None:
    run = copy_run(at_30, tmp_path / "run")
    told = json.loads(andrectl(run, "pivot", "--floors", "topics=0.6", "--json"))
    assert told["proof"]["first_step"] is None and told["proof"]["problems"] == []
    assert last_step(run) == 30
    state = json.loads(run.state.read_bytes())
    assert state["policy"] == told["policy"]["new"]
    assert [arm["pulls"] for arm in state["arms"].values()] == [0, 0]
    assert "before policy" in andrectl(run, "pivot", "--reset", code=78)


def test_in_warm_up_the_phase_goes_on(still: RunDirectory) -> None:
    set_steps(still, 50)
    andrectl(
        *(still, "pivot", "--floors", "topics=0.1"),
        *("--set", "warmup.steps=40", "--set", "warmup.sources=['license']"),
    )
    finish(still)
    assert shares(still, 30, 40) == {"license": 1.0}
    assert shares(still, 40)["topics"] == pytest.approx(0.5, abs=0.2)


# Killed at any stage.

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


def test_killed_at_every_stage_before_the_commit(live: RunDirectory) -> None:
    """One run, killed at each stage in turn; given up, killed again, and gone on with at last."""
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
    for number, stage in enumerate(BEFORE_THE_COMMIT[2::3]):
        killed(live, stage, "pivot", "--caps", f"topics={0.3 + number / 10}", "--at", "step")
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
    lines = live.settings.read_text().replace(
        f"checkpoint_every = {EVERY}", "checkpoint_every = 9999999"
    )
    andrectl(live, "stop")
    live.settings.write_text(lines)
    andrectl(live, "start")
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
    andrectl(live, "stop")
    text = live.settings.read_text()
    live.settings.write_text(
        text.replace(f"checkpoint_every = {EVERY}", "checkpoint_every = 9999999")
    )
    andrectl(live, "start")
    told = andrectl(live, "pivot", "--caps", "topics=0.3", "--timeout", "0.5", code=75)
    assert "the pivot is off" in told
    assert pivot.read(live) is None and len(read_policies(live.policy)) == 1
    before = last_step(live)
    until(lambda: last_step(live) > before + 5)


def test_a_snapshot_and_a_pivot_at_once(live: RunDirectory) -> None:
    until(lambda: last_step(live) > 0)
    snapshot = spawn(live, "snapshot", "--at", "cadence", "--json")
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
        "from andrectl import supervisor\n"
        "def stop(run, timeout):\n"
        "    pid = lock.signal_holder(run.lock, signal.SIGKILL)\n"
        "    supervisor.wait(lambda: lock.holder(run.lock) != pid, 30, lambda: None, '', '')\n"
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
