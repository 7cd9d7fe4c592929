"""The audit fork with real daemons: bit for bit, told apart, whole without its parent."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from andread.rundir import commit, companion, lineage, lock
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import Policy, read_policies, write_policies
from andread.rundir.run_toml import read_settings

from .harness import Daemon, copy_run, entries, find, last_step, make_run, running, train
from .pivoting import Table, andrectl, every_step_once, finish, set_steps, shares, spawn, until

STEPS = 160
AT = 60
_PARENTS_OWN = ("pins", "forks", ".events.json", "daemon.stderr")


@pytest.fixture(scope="module")
def run_of_160(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of 160 steps, never interrupted; copy it."""
    run = make_run(tmp_path_factory.mktemp("forked") / "run", steps=STEPS, every=20)
    train(run)
    return run


@pytest.fixture
def trained(run_of_160: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A copy of it, to be forked."""
    return copy_run(run_of_160, tmp_path / "trained")


@pytest.fixture
def parent(finished: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A run of 60 steps that is finished, to be forked."""
    return copy_run(finished, tmp_path / "parent")


def fork(parent: RunDirectory, into: Path, *arguments: object, code: int = 0) -> RunDirectory:
    """Fork `parent` into a directory."""
    andrectl(parent, "fork", "--into", into, *arguments, code=code)
    return RunDirectory(into)


def compare(*runs: RunDirectory) -> Table:
    """Compare two runs; return what is told of the second."""
    told = andrectl(runs[0], "compare", *(run.path for run in runs[1:]), "--json")
    return json.loads(told)["others"][0]


def contents(run: RunDirectory) -> dict[str, str]:
    """Return the hash of every file that a fork has no business with."""
    return {
        str(path.relative_to(run.path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.path.rglob("*"))
        if path.is_file() and path.relative_to(run.path).parts[0] not in _PARENTS_OWN
    }


def digest(run: RunDirectory, step: int) -> str:
    return hashlib.sha256(run.checkpoint(step).read_bytes()).hexdigest()


def test_a_null_fork_is_its_parent_bit_for_bit(trained: RunDirectory, tmp_path: Path) -> None:
    before = contents(trained)
    new = fork(trained, tmp_path / "null", "--at", AT)
    assert last_step(new) == AT and new.settings.read_bytes() == trained.settings.read_bytes()
    prefix = new.history.read_bytes()[:-3]
    train(new)
    for step in range(AT + 20, STEPS + 1, 20):
        assert digest(new, step) == digest(trained, step), step
    assert entries(new) == entries(trained)
    assert trained.history.read_bytes().startswith(prefix) and every_step_once(new)
    assert new.history.read_bytes().startswith(prefix)
    assert contents(trained) == before
    started = find(new, "started")
    assert started is not None and started["step"] == AT and find(new, "replay") is None
    told = compare(trained, new)
    assert told["training"]["identical"] and told["parted_after"] == AT
    assert told["verdict"]["why"] == "identical"
    assert told["relation"] == {"ancestor": str(trained.path.resolve()), "step": AT}
    assert not any(told["differences"].values())


def test_a_tenfold_rate_is_told_apart(trained: RunDirectory, tmp_path: Path) -> None:
    hot = fork(trained, tmp_path / "hot", "--at", AT, "--set", "optimizer.lr=3e-2")
    assert [policy.begins_after for policy in read_policies(hot.policy)] == [0, AT]
    train(hot)
    told = compare(trained, hot)
    verdict, training = told["verdict"], told["training"]
    assert verdict["why"] == "more than noise" and verdict["by"] == "training"
    ahead = "first" if training["means"][0] < training["means"][1] else "other"
    assert verdict["ahead"] == ahead
    assert compare(hot, trained)["verdict"]["ahead"] != ahead, "whichever comes first"
    (changed,) = told["differences"]["policy"]
    assert (changed["key"], changed["new"]) == ("optimizer.lr", 3e-2)
    rates = [entry["lr"] for entry in entries(hot)]
    plain = [entry["lr"] for entry in entries(trained)]
    assert rates[:AT] == plain[:AT]
    assert rates[AT:] == pytest.approx([10 * rate for rate in plain[AT:]])


def test_a_hundredfold_rate_falls_behind(trained: RunDirectory, tmp_path: Path) -> None:
    """The sign, where it cannot be in doubt."""
    hot = fork(trained, tmp_path / "hot", "--at", AT, "--set", "optimizer.lr=0.3")
    train(hot)
    told = compare(trained, hot)
    assert told["verdict"]["ahead"] == "first" and told["training"]["difference"] > 0.1
    shown = andrectl(trained, "compare", hot.path)
    assert "A is ahead by" in shown and "more than noise" in shown


def test_null_forks_with_other_data_are_not_called_different(
    trained: RunDirectory, tmp_path: Path
) -> None:
    one, other = (
        fork(trained, tmp_path / name, "--at", AT, "--seed-stream", seed)
        for name, seed in (("one", 11), ("other", 12))
    )
    for run in (one, other):
        train(run)
    told = compare(one, other)
    assert told["verdict"]["why"] == "noise" and told["verdict"]["ahead"] is None
    assert told["relation"] == {"ancestor": str(trained.path.resolve()), "step": AT}
    assert digest(one, STEPS) != digest(other, STEPS) != digest(trained, STEPS)
    assert entries(one)[AT]["loss"] != entries(other)[AT]["loss"], "other draws at once"
    assert told["validation"]["same_text"], "the audits go on measuring the same"
    assert [change["key"] for change in told["differences"]["settings"]] == ["run.data_seed"]
    assert read_settings(one.settings).run.seed == 7


def test_a_run_is_forked_while_it_trains(endless: RunDirectory, tmp_path: Path) -> None:
    parent = copy_run(endless, tmp_path / "parent")
    text = parent.settings.read_text()
    parent.settings.write_text(text.replace("keep_last = 100", "keep_last = 2"))
    with running(parent) as daemon:
        daemon.until_step(35)
        new = fork(parent, tmp_path / "fork")
        step = companion.read(new.companion(new.checkpoint_steps()[0])).step
        daemon.until(lambda: last_step(parent) > step + 60)
        steps = parent.checkpoint_steps()
        assert steps[0] == step and len(steps) in (3, 4), "the pinned one and the two newest"
        andrectl(parent, "checkpoints", "--unpin", step)
        daemon.until(lambda: not parent.checkpoint(step).exists())
        pid = daemon.process.pid
        assert lock.holder(parent.lock) == pid, "the parent has gone on throughout"
    assert digest(new, step) == companion.read(new.companion(step)).sha256
    set_steps(new, step + 20)
    train(new)
    assert entries(new) == entries(parent)[: step + 20] and every_step_once(new)


def test_a_fork_is_whole_without_its_parent(
    parent: RunDirectory, finished: RunDirectory, tmp_path: Path
) -> None:
    new = fork(parent, tmp_path / "fork", "--at", 40)
    shutil.rmtree(parent.path)
    train(new)
    assert digest(new, 60) == digest(finished, 60) and entries(new) == entries(finished)
    andrectl(new, "prepare")
    shown = andrectl(new, "status", code=3)
    assert f"fork of     {parent.path}, after step 40: nothing changed" in shown
    assert "missing" in andrectl(new, "lineage")


def test_without_room_for_links_everything_is_copied(
    parent: RunDirectory, finished: RunDirectory, tmp_path: Path
) -> None:
    with on_tmpfs(tmp_path / "disk", "16m") as disk:
        told = json.loads(andrectl(parent, "fork", "--into", disk / "fork", "--at", 40, "--json"))
        assert set(told["shared"].values()) == {"copy"}
        new = RunDirectory(disk / "fork")
        train(new)
        assert digest(new, 60) == digest(finished, 60)
    with on_tmpfs(tmp_path / "small", "300k") as disk:
        said = andrectl(parent, "fork", "--into", disk / "fork", "--at", 40, code=74)
        assert "the fork takes" in said and "hint" in said
        assert list(disk.iterdir()) == []


@contextlib.contextmanager
def on_tmpfs(directory: Path, size: str) -> Iterator[Path]:
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("CANNOT MOUNT A TMPFS, forks across file systems go untested")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def test_a_fork_under_another_policy(
    parent: RunDirectory, finished: RunDirectory, tmp_path: Path
) -> None:
    change = ["--caps", "topics=0.2", "--set", "optimizer.batch=12", "--set", "run.steps=90"]
    new = fork(parent, tmp_path / "fork", "--at", 30, *change)
    old, policy = read_policies(new.policy)
    assert old == read_policies(finished.policy)[0]
    assert policy == Policy(
        begins_after=30, caps={"topics": 0.2}, overrides={"optimizer.batch": 12}
    )
    train(new)
    started = find(new, "started")
    assert started is not None and started["pulls"] == 0 and started["policy"] == policy.id
    assert last_step(new) == 90
    assert shares(new, 30)["topics"] == pytest.approx(0.2, abs=0.06)
    assert {sum(entry["pulls"].values()) for entry in entries(new)[30:]} == {12}
    told = compare(parent, new)
    assert not told["same_mix"] and told["verdict"]["by"] == "validation"


def test_what_no_pivot_may_change_a_fork_may(
    parent: RunDirectory, finished: RunDirectory, tmp_path: Path
) -> None:
    new = fork(parent, tmp_path / "fork", "--at", 30, "--set", "optimizer.beta1=0.5")
    assert read_settings(new.settings).optimizer.beta1 == 0.5
    assert len(read_policies(new.policy)) == 1
    train(new)
    assert digest(new, 60) != digest(finished, 60)
    assert entries(new)[:31] == entries(finished)[:31], "the first new step's loss is from before"


def test_policies_begun_before_the_step_come_along(
    still: RunDirectory, at_30: RunDirectory, tmp_path: Path
) -> None:
    andrectl(still, "pivot", "--caps", "topics=0.3", "--policy", "ucb")
    finish(still)
    after = fork(still, tmp_path / "after", "--at", 40)
    assert read_policies(after.policy) == read_policies(still.policy)
    train(after)
    assert digest(after, 60) == digest(still, 60) and entries(after) == entries(still)
    before = fork(still, tmp_path / "before", "--at", 30)
    assert read_policies(before.policy) == read_policies(at_30.policy), "as if not pivoted"
    train(before)
    unpivoted = copy_run(at_30, tmp_path / "unpivoted")
    set_steps(unpivoted, 60)
    train(unpivoted)
    assert digest(before, 60) == digest(unpivoted, 60)


def test_a_fork_at_step_0(parent: RunDirectory, finished: RunDirectory, tmp_path: Path) -> None:
    same = fork(parent, tmp_path / "same", "--at", 0)
    train(same)
    assert digest(same, 60) == digest(finished, 60) and entries(same) == entries(finished)
    other = fork(parent, tmp_path / "other", "--at", 0, "--floors", "topics=0.8")
    (policy,) = read_policies(other.policy)
    assert policy == Policy(floors={"topics": 0.8})
    train(other)
    assert shares(other, 0)["topics"] == pytest.approx(0.8, abs=0.06)


def test_a_fork_acknowledges_nothing_of_its_parent(endless: RunDirectory, tmp_path: Path) -> None:
    parent = copy_run(endless, tmp_path / "parent")
    andrectl(parent, "start")
    try:
        until(lambda: last_step(parent) > 5)
        step = json.loads(andrectl(parent, "snapshot", "--json"))["step"]
    finally:
        andrectl(parent, "stop")
    assert companion.read(parent.companion(step)).requests
    new = fork(parent, tmp_path / "fork", "--at", step, "--set", f"run.steps={step + 5}")
    train(new)
    assert find(new, "acknowledged") is None


def test_a_fork_of_a_fork_and_the_tree(
    parent: RunDirectory, finished: RunDirectory, tmp_path: Path
) -> None:
    child = fork(parent, tmp_path / "child", "--at", 20, "--caps", "topics=0.4")
    other = fork(parent, tmp_path / "other", "--at", 40)
    train(child)
    grandchild = fork(child, tmp_path / "grandchild", "--at", 50, "--reset")
    assert [p.begins_after for p in read_policies(grandchild.policy)] == [0, 20, 50]

    def seen(run: RunDirectory) -> Table:
        told: Table = json.loads(andrectl(run, "lineage", "--json"))
        assert told["damaged"] == []
        return told["root"]

    for run in (parent, child, other, grandchild):
        root = seen(run)
        assert root["path"] == str(parent.path)
        assert [node["path"] for node in root["forks"]] == [str(child.path), str(other.path)]
        assert [node["at"] for node in root["forks"]] == [20, 40]
        assert root["forks"][0]["forks"][0]["path"] == str(grandchild.path)
    train(grandchild)
    train(other)
    told = compare(grandchild, other)
    assert told["relation"] == {"ancestor": str(parent.path), "step": 20}
    assert told["parted_after"] == 20

    shutil.rmtree(other.path)
    assert [node["state"] for node in seen(grandchild)["forks"]] == ["here", "missing"]
    child.path.rename(tmp_path / "moved")
    root = seen(grandchild)
    assert (root["path"], root["state"]) == (str(child.path), "missing")
    assert seen(RunDirectory(tmp_path / "moved"))["forks"][0]["path"] == str(tmp_path / "moved")
    assert seen(parent)["forks"][0]["state"] == "missing"
    (tmp_path / "other").mkdir()
    shutil.copy(parent.settings, tmp_path / "other/run.toml")
    assert [node["state"] for node in seen(parent)["forks"]] == ["missing", "another run"]


def test_two_forks_at_once_of_one_live_run(live: RunDirectory, tmp_path: Path) -> None:
    until(lambda: last_step(live) > 10)
    processes = [
        spawn(live, "fork", "--into", tmp_path / name, "--json") for name in ("a", "b", "b")
    ]
    codes = []
    for process in processes:
        process.communicate(timeout=120)
        codes.append(process.returncode)
    assert codes[0] == 0 and sorted(codes[1:]) == [0, 73]
    assert len(lineage.forks(live)) == 2
    for name in ("a", "b"):
        new = RunDirectory(tmp_path / name)
        (step,) = new.checkpoint_steps()
        assert commit.pinned(live) >= {step} and live.checkpoint(step).exists()
    assert {path.name for path in tmp_path.iterdir()} == {"run", "a", "b"}


# A fork that is killed.

STAGES = [
    "andread.rundir.commit.pin before 1",
    "andread.rundir.commit.pin after 1",
    "andread.rundir.sharing.Transfer.__init__ after 1",
    "andread.rundir.sharing.Transfer.finish after 5",
    "andread.rundir.companion.write after 1",
    "andread.rundir.history.copy_prefix after 1",
    "andread.rundir.policy.write_policies after 1",
    "andread.rundir.lineage.write after 1",
    "andrectl.forking._build after 1",
]


def test_killed_at_any_moment_it_leaves_no_run(
    parent: RunDirectory, finished: RunDirectory, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    before = contents(parent)
    for stage in STAGES:
        process = spawn(parent, "fork", "--into", place / "fork", "--at", 40, kill=stage)
        _, err = process.communicate(timeout=60)
        assert process.returncode == -9, f"{stage} was not reached:\n{err}"
        assert not any(RunDirectory(path).exists() for path in place.iterdir()), stage
        assert not (place / "fork").exists(), stage
        assert contents(parent) == before and lineage.forks(parent) == [], stage
        assert commit.pinned(parent) <= {40}, stage
        left = list(place.iterdir())
        if left:
            assert str(left[0]) in andrectl(
                parent, "fork", "--into", place / "fork", "--dry-run"
            ), stage
            assert list(place.iterdir()) == left, "a dry run removes nothing"
    told = andrectl(parent, "fork", "--into", place / "fork", "--at", 40)
    assert "removed" in told and [path.name for path in place.iterdir()] == ["fork"]
    train(RunDirectory(place / "fork"))
    assert digest(RunDirectory(place / "fork"), 60) == digest(finished, 60)


@pytest.mark.parametrize(
    "stage", ["andread.rundir.files.remove_tree before 1", "andrectl.forking._record before 1"]
)
def test_killed_after_its_commit_the_fork_is_whole(
    parent: RunDirectory, finished: RunDirectory, tmp_path: Path, stage: str
) -> None:
    process = spawn(parent, "fork", "--into", tmp_path / "fork", "--at", 40, kill=stage)
    process.communicate(timeout=60)
    assert process.returncode == -9
    new = RunDirectory(tmp_path / "fork")
    train(new)
    assert digest(new, 60) == digest(finished, 60)
    root = json.loads(andrectl(new, "lineage", "--json"))["root"]
    assert root["path"] == str(parent.path), "known by its history"
    assert [node["path"] for node in root["forks"]] == [str(new.path)]


def test_a_writer_of_the_fork_never_touches_its_parent(
    parent: RunDirectory, finished: RunDirectory, tmp_path: Path
) -> None:
    """Whatever a fork does with its files: replace, prune, set aside, append."""
    new = fork(parent, tmp_path / "fork", "--at", 40)
    before = contents(parent)
    text = new.settings.read_text().replace("keep_last = 100", "keep_last = 2")
    new.settings.write_text(text)
    write_policies(new.policy, read_policies(new.policy))
    train(new)
    assert new.checkpoint_steps() == [50, 60]
    andrectl(new, "prepare")
    assert contents(parent) == before
    with running(parent) as daemon:
        assert isinstance(daemon, Daemon) and daemon.wait() == 0


def test_pictures_and_figures_tell_of_a_fork(parent: RunDirectory, tmp_path: Path) -> None:
    new = fork(parent, tmp_path / "new", "--at", 30)
    set_steps(new, 50)
    train(new)
    for run, other, kind in ((parent, new, "forked"), (new, parent, "fork")):
        told = andrectl(run, "plot", "--out", tmp_path / "run.png", "--json")
        marks = json.loads(told)["runs"][0]["marks"]
        where = str(other.path.resolve())
        assert {"step": 30, "kind": "fork", "detail": where} in marks
        assert "restart" not in {mark["kind"] for mark in marks}
        andrectl(run, "export", "--to", "jsonl", "--out", tmp_path / kind)
        lines = [json.loads(line) for line in (tmp_path / kind).read_text().splitlines()]
        steps = [line["step"] for line in lines if line["kind"] == "step"]
        assert steps == list(range(1, last_step(run) + 1))
        place = next(n for n, line in enumerate(lines) if line.get("event") == kind)
        before = [line["step"] for line in lines[:place] if line["kind"] == "step"]
        assert before[-1] == 30, "right behind its step"
