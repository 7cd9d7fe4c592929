"""The polish pivot with real daemons: end to end, proven, bit for bit."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from andread.rundir import companion, samples
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import Policy, Warmup, read_policies, write_policies

from .harness import copy_run, entries, find, image, last_step, train
from .pivoting import (
    EVERY,
    SIDECARS,
    Table,
    andrectl,
    commit_is_pinned,
    every_step_once,
    finish,
    set_steps,
    shares,
    until,
)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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
    warming = Policy(begins_after=29, warmup=Warmup(steps=40, sources=("license",)))
    write_policies(still.policy, [*read_policies(still.policy), warming])
    set_steps(still, 50)
    told = andrectl(still, "pivot", "--caps", "license=0.5", code=78)
    assert "in the warm-up, the caps sum to 0.5" in told
    andrectl(still, "pivot", "--floors", "topics=0.1")
    finish(still)
    assert shares(still, 30, 40) == {"license": 1.0}
    assert shares(still, 40)["topics"] == pytest.approx(0.5, abs=0.2)
