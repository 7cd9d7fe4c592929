"""andrectl fork: every refusal before anything is touched, what is carried, what is told."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from andread.rundir import commit, companion, events, history, lineage, samples
from andread.rundir.layout import RunDirectory
from andread.rundir.manifest import Manifest, fingerprint_of, write_manifest
from andread.rundir.policy import Policy, read_policies, write_policies
from andread.rundir.run_toml import read_settings
from andrectl.rewriting import with_values


def prepare(run: RunDirectory) -> None:
    """Give `run` tokens and a tokenizer, as far as a fork looks at them."""
    run.data.mkdir()
    run.tokenizer.write_text("{}")
    for name in ("books", "code"):
        hashes = []
        for split, count in (("train", 1000), ("validation", 200)):
            data = name.encode()[:2] * count
            run.tokens(name, split).write_bytes(data)
            hashes.append(hashlib.sha256(data).hexdigest())
        write_manifest(
            run.manifest(name),
            Manifest(
                version=1,
                source=name,
                dtype="uint16",
                vocabulary=1024,
                documents=1,
                train_tokens=1000,
                train_sha256=hashes[0],
                validation_tokens=200,
                validation_sha256=hashes[1],
                input_bytes=1,
                inputs="0" * 64,
                recipe="0" * 64,
                tokenizer="0" * 64,
                fingerprint=fingerprint_of("uint16", *hashes),
            ),
        )


@pytest.fixture
def parent(trained: RunDirectory) -> RunDirectory:
    """A stopped run of 250 steps, checkpoints of 100 and 200, with tokens."""
    prepare(trained)
    return trained


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "place" / "fork"


@pytest.fixture
def fork(andrectl, parent, into):
    """Fork the parent; return what came of it."""
    into.parent.mkdir()

    def call(*arguments: object):
        return andrectl("--run", parent.path, "fork", "--into", into, *arguments)

    return call


def everything(path: Path) -> dict[str, tuple[int, int, int]]:
    return {
        str(each): (each.lstat().st_ino, each.lstat().st_size, each.lstat().st_mtime_ns)
        for each in sorted((path, *path.rglob("*")))
    }


def test_what_a_fork_has(fork, parent, into) -> None:
    result = fork("--at", 100, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["schema"], told["run"], told["step"], told["changes"]) == (1, str(into), 100, [])
    new = RunDirectory(into)
    assert sorted(path.name for path in into.iterdir()) == [
        *(".events.json", ".lineage.json", ".loss.json", "data", "policy.json", "run.toml"),
        *("step_000100.bin", "step_000100.json", "tokenizer.json"),
    ]
    for path in (run_toml := parent.settings, parent.policy, parent.tokenizer):
        assert (into / path.name).read_bytes() == path.read_bytes()
    assert run_toml.read_bytes() == new.settings.read_bytes()
    old, own = (companion.read(run.companion(100)) for run in (parent, new))
    trajectory = read_settings(new.settings).trajectory()
    assert own == dataclasses.replace(old, reasons=("fork",), trajectory=trajectory)
    history = new.history.read_bytes()
    assert hashlib.sha256(history[:-3]).hexdigest() == old.history_sha256
    assert json.loads(history)[-1]["step"] == 100
    record = lineage.read(new.lineage)
    assert record is not None and record == lineage.read(parent.fork(told["id"]))
    assert (record.parent, record.fork, record.step) == (str(parent.path), str(into), 100)
    assert record.sha256 == hashlib.sha256(new.checkpoint(100).read_bytes()).hexdigest()
    assert [event["event"] for event in events.read(new.events)] == ["fork"]
    (said,) = [event for event in events.read(parent.events) if event["event"] == "forked"]
    assert (said["path"], said["id"]) == (str(into), record.id)
    assert commit.pinned(parent) == {100} and commit.pinned(new) == set()
    assert new.history.stat().st_ino != parent.history.stat().st_ino
    assert new.history.stat().st_nlink == 1
    assert list(into.parent.iterdir()) == [into]


def test_the_newest_valid_one_is_the_default(fork, parent, into) -> None:
    data = bytearray(parent.checkpoint(200).read_bytes())
    data[100] ^= 1
    parent.checkpoint(200).write_bytes(data)
    result = fork()
    assert result.exit_code == 0 and "passed over: step_000200.bin" in result.stderr
    assert RunDirectory(into).checkpoint_steps() == [100]
    assert f"next: andrectl start --run {into}" in result.stderr


def test_status_names_the_parent(fork, andrectl, parent, into) -> None:
    assert fork("--set", "optimizer.lr=1e-4").exit_code == 0
    shown = andrectl("--run", into, "status").stdout
    assert f"fork of     {parent.path}, after step 200: optimizer.lr: 0.003 → 0.0001" in shown
    told = json.loads(andrectl("--run", into, "status", "--json").stdout)
    assert told["lineage"]["parent"] == str(parent.path) and told["lineage"]["step"] == 200
    told = json.loads(andrectl("--run", parent.path, "status", "--json").stdout)
    assert (told["lineage"], told["forks"]) == (None, 1)


def test_audits_come_along_where_the_policy_goes_on(fork, parent, into) -> None:
    audits = [{"step": step, "samples": []} for step in (100, 200)]
    samples.write(parent.samples, read_policies(parent.policy)[0].id, audits)
    assert fork("--at", 100).exit_code == 0
    assert samples.read(RunDirectory(into).samples)["audits"] == audits[:1]


def test_audits_of_another_policy_do_not(fork, parent, into) -> None:
    samples.write(parent.samples, read_policies(parent.policy)[0].id, [{"step": 100}])
    assert fork("--at", 100, "--caps", "code=0.4").exit_code == 0
    assert not RunDirectory(into).samples.exists()


def test_policies_begun_later_stay_behind(fork, parent, into, andrectl) -> None:
    later = [Policy(begins_after=after, caps={"code": 0.5}) for after in (99, 100, 200)]
    write_policies(parent.policy, [Policy(), *later])
    assert fork("--at", 100, "--floors", "books=0.6").exit_code == 0
    expected = Policy(begins_after=100, caps={"code": 0.5}, floors={"books": 0.6})
    assert read_policies(RunDirectory(into).policy) == [Policy(), later[0], expected]
    rows = json.loads(andrectl("--run", into, "pivots", "--json").stdout)["pivots"]
    assert [(row["step"], row["proof"]) for row in rows] == [(99, "by fork"), (100, "by fork")]
    rows = json.loads(andrectl("--run", parent.path, "pivots", "--json").stdout)["pivots"]
    assert {row["proof"] for row in rows} == {"none"}
    assert "floors.books: none → 0.6" in andrectl("compare", parent.path, into).stdout, "at once"


def test_the_run_toml_of_a_fork_keeps_its_comments(fork, parent, into) -> None:
    line = ["--set", "optimizer.beta2=0.99", "--set", "run.steps=900", "--seed-stream", 5]
    result = fork("--json", *line)
    assert result.exit_code == 0, result.stderr
    before, after = (path.read_text().splitlines() for path in (parent.settings, into / "run.toml"))
    changed = [line for line in after if line not in before]
    assert len(changed) == 3 and "data_seed = 5" in changed
    assert [line for line in changed if "steps = 900" in line and "# where training ends" in line]
    made = read_settings(into / "run.toml")
    assert (made.run.draw_seed, made.run.seed, made.optimizer.beta2) == (5, 1, 0.99)
    keys = {change["key"]: change["new"] for change in json.loads(result.stdout)["changes"]}
    assert keys == {"run.data_seed": 5, "run.steps": 900, "optimizer.beta2": 0.99}
    assert companion.read(RunDirectory(into).companion(200)).trajectory == made.trajectory()


REFUSALS = [
    (("--at", 150), 66, "there is no checkpoint of step 150"),
    (("--at", "soon"), 64, "neither a step nor latest"),
    (("--at", -5), 64, "neither a step nor latest"),
    (("--set", "optimizer.rate=1"), 78, "did you mean"),
    (("--set", "model.width=64"), 78, "may not change in a fork"),
    (("--set", "run.seed=5"), 78, "--seed-stream"),
    (("--set", "data.validation=0.5"), 78, "may not change in a fork"),
    (("--set", "optimizer.beta1=2"), 78, "beta1"),
    (("--set", "optimizer.lr"), 64, "KEY=VALUE"),
    (("--set", "run.steps=many"), 78, "whole number"),
    (("--caps", "wbe=0.3"), 78, "unknown source"),
    (("--caps", "code=0.3,books=0.3"), 78, "less than 1"),
    (("--floors", "code=0.7,books=0.7"), 78, "more than 1"),
    (("--policy", "fixed"), 78, "needs a weight"),
    (("--policy", "uniform"), 64, "nothing would change"),
    (("--caps", "code=1"), 64, "nothing would change"),
    (("--seed-stream", 1), 64, "by seed 1 already"),
]


@pytest.mark.parametrize(("line", "code", "said"), REFUSALS, ids=lambda value: str(value))
def test_a_refusal_touches_nothing(fork, parent, into, line, code, said) -> None:
    before = everything(parent.path)
    for more in ((), ("--dry-run",)):
        result = fork(*line, *more)
        assert result.exit_code == code and said in result.stderr, result.stderr
        assert everything(parent.path) == before and list(into.parent.iterdir()) == []


@pytest.mark.parametrize("kind", ["directory", "file", "dangling link"])
def test_a_place_that_is_taken(fork, parent, into, kind) -> None:
    before = everything(parent.path)
    if kind == "directory":
        into.mkdir()
    elif kind == "file":
        into.touch()
    else:
        into.symlink_to("nowhere")
    result = fork()
    assert result.exit_code == 73 and "is there already" in result.stderr
    assert everything(parent.path) == before and list(into.parent.iterdir()) == [into]


def test_a_place_that_is_not_there(andrectl, parent, tmp_path) -> None:
    result = andrectl("--run", parent.path, "fork", "--into", tmp_path / "no/fork")
    assert result.exit_code == 66 and "is not a directory" in result.stderr


def test_a_place_within_the_parent(andrectl, parent) -> None:
    result = andrectl("--run", parent.path, "fork", "--into", parent.path / "fork")
    assert result.exit_code == 64 and "outlives" in result.stderr
    assert not (parent.path / "fork").exists()


def damage_bin(run: RunDirectory) -> None:
    data = bytearray(run.checkpoint(100).read_bytes())
    data[50] ^= 1
    run.checkpoint(100).write_bytes(data)


def cut_bin(run: RunDirectory) -> None:
    os.truncate(run.checkpoint(100), 1000)


def drop_companion(run: RunDirectory) -> None:
    run.companion(100).unlink()


def damage_companion(run: RunDirectory) -> None:
    run.companion(100).write_text("{}")


def change_history(run: RunDirectory) -> None:
    text = run.history.read_bytes().replace(b'"loss":5.5', b'"loss":4.5', 1)
    run.history.write_bytes(text)


def cut_history(run: RunDirectory) -> None:
    os.truncate(run.history, 100)


def change_tokens(run: RunDirectory) -> None:
    os.truncate(run.tokens("code", "train"), 10)


@pytest.mark.parametrize(
    "damage",
    [damage_bin, cut_bin, drop_companion, damage_companion, change_history, cut_history],
    ids=lambda damage: damage.__name__,
)
def test_what_is_not_valid_is_not_forked(fork, parent, into, damage) -> None:
    damage(parent)
    before = everything(parent.path)
    result = fork("--at", 100)
    assert result.exit_code == 65, result.stderr
    assert len(result.stderr.splitlines()) <= 2
    assert everything(parent.path) == before and list(into.parent.iterdir()) == []


def test_a_run_without_a_checkpoint(andrectl, run, into) -> None:
    into.parent.mkdir()
    result = andrectl("--run", run.path, "fork", "--into", into)
    assert result.exit_code == 66 and "no checkpoint" in result.stderr


def test_tokens_that_are_not_there(fork, parent, into) -> None:
    parent.manifest("code").unlink()
    assert fork().exit_code == 66
    assert list(into.parent.iterdir()) == [] and not parent.pins.exists()


def test_tokens_of_another_size_are_found_out(fork, parent, into) -> None:
    change_tokens(parent)
    result = fork()
    assert result.exit_code == 65 and "code.train.bin has 10 bytes" in result.stderr
    assert list(into.parent.iterdir()) == [] and commit.pinned(parent) == set()


def test_a_run_toml_that_drifted(fork, parent, into) -> None:
    old = companion.read(parent.companion(100))
    trajectory = read_settings(parent.settings).trajectory() | {"optimizer.lr": 0.5}
    companion.write(parent.companion(100), dataclasses.replace(old, trajectory=trajectory))
    result = fork("--at", 100)
    assert result.exit_code == 78 and "optimizer.lr: 0.5 became 0.003" in result.stderr
    assert "andrectl fork --set" in result.stderr


def test_other_tokens_than_those_trained_on(fork, parent, into) -> None:
    old = companion.read(parent.companion(100))
    companion.write(parent.companion(100), dataclasses.replace(old, data={"code": "f" * 64}))
    assert fork("--at", 100).exit_code == 65


def test_a_value_that_spans_lines_costs_the_comments_alone(fork, parent, into) -> None:
    text = parent.settings.read_text().replace("prompts = []", 'prompts = [\n  "a",\n]')
    parent.settings.write_text(text)
    assert fork("--set", 'audit.prompts=["b", "c\\"d"]').exit_code == 0
    wanted = tomllib.loads(text)
    wanted["audit"]["prompts"] = ["b", 'c"d']
    made = RunDirectory(into).settings.read_text()
    assert tomllib.loads(made) == wanted and "#" in text and "#" not in made


def test_a_full_disk_is_refused_before_anything(andrectl, parent, tmp_path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("CANNOT MOUNT A TMPFS, the full disk goes untested")
    try:
        before = everything(parent.path)
        line = ("--run", parent.path, "fork", "--into", disk / "fork")
        for more in ((), ("--dry-run",)):
            result = andrectl(*line, *more)
            assert result.exit_code == 74 and "the fork takes" in result.stderr
            assert everything(parent.path) == before and list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_dry_run_tells_and_touches_nothing(fork, parent, into) -> None:
    before = everything(parent.path)
    line = ("--at", 100, "--caps", "code=0.4", "--dry-run")
    shown = fork(*line)
    assert shown.exit_code == 0 and "caps.code: none → 0.4" in shown.stdout
    told = json.loads(fork(*line, "--json").stdout)
    assert (told["dry_run"], told["step"], told["copied_bytes"]) == (True, 100, 0)
    assert told["changes"] == [{"key": "caps.code", "old": None, "new": 0.4}]
    assert everything(parent.path) == before and list(into.parent.iterdir()) == []


def test_a_fault_in_the_middle_takes_everything_back(fork, parent, into, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, os.strerror(28), "x")

    commit.pin(parent, 200)
    monkeypatch.setattr("andread.rundir.history.copy_prefix", fail)
    result = fork("--at", 100)
    assert result.exit_code == 74 and "free some space" in result.stderr
    assert list(into.parent.iterdir()) == [] and commit.pinned(parent) == {200}
    assert fork("--at", 200).exit_code == 74
    assert commit.pinned(parent) == {200}, "a pin that was there stays"


def test_a_fork_that_fails_leaves_the_pin_to_another_of_the_same_step(
    fork, parent, into, monkeypatch, andrectl
) -> None:
    """It had set the pin; the other one has come and gone meanwhile."""
    real = history.copy_prefix

    def other_first(*arguments: object) -> None:
        monkeypatch.setattr("andread.rundir.history.copy_prefix", real)
        made = andrectl("--run", parent.path, "fork", "--at", 200, "--into", into.with_name("b"))
        assert made.exit_code == 0, made.stderr
        raise OSError(28, os.strerror(28), "x")

    monkeypatch.setattr("andread.rundir.history.copy_prefix", other_first)
    assert fork("--at", 200).exit_code == 74
    assert [path.name for path in into.parent.iterdir()] == ["b"]
    assert commit.pinned(parent) == {200}


def test_ctrl_c_takes_everything_back(fork, parent, into, monkeypatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("andread.rundir.history.copy_prefix", interrupt)
    assert fork().exit_code == 130
    assert list(into.parent.iterdir()) == [] and commit.pinned(parent) == set()


def test_a_site_that_is_in_use_is_left_alone(fork, parent, into, monkeypatch) -> None:
    """Another fork into the same place, beside a dead one and what is none of ours."""
    dead, mine, other = (into.with_name(f"fork.tmp-{n}") for n in ("00000001", "00000002", "mine"))
    for path in (dead, mine, other):
        (path / "fork").mkdir(parents=True)
    descriptor = os.open(mine, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert [str(dead), str(mine)] == json.loads(fork("--dry-run", "--json").stdout)["leftovers"]
        result = fork()
    finally:
        os.close(descriptor)
    assert result.exit_code == 0 and f"removed {dead}" in result.stderr
    assert "another fork into" in result.stderr
    assert sorted(into.parent.iterdir()) == sorted([into, mine, other])


def test_retention_that_is_quicker_than_the_pin(fork, parent, into, monkeypatch) -> None:
    """As in a parent that trains: the newest checkpoint is looked for again, a named one is not."""
    real = commit.pin

    def late(run: RunDirectory, step: int) -> None:
        if run.checkpoint(200).exists():
            commit.prune(run, 200)
        real(run, step)

    monkeypatch.setattr("andread.rundir.commit.pin", late)
    assert fork().exit_code == 0
    assert RunDirectory(into).checkpoint_steps() == [100]
    assert commit.pinned(parent) == {100}


def test_retention_that_takes_a_named_step(fork, parent, into, monkeypatch) -> None:
    monkeypatch.setattr("andread.rundir.commit.pin", lambda run, step: commit.prune(run, step))
    result = fork("--at", 100)
    assert result.exit_code == 66 and "retention has just taken" in result.stderr
    assert list(into.parent.iterdir()) == []


def test_a_parent_that_cannot_be_recorded_in_is_no_fault_of_the_fork(
    fork, parent, into, monkeypatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr("andread.rundir.lineage.record_in_parent", fail)
    result = fork()
    assert result.exit_code == 0 and "could not be recorded" in result.stderr
    assert RunDirectory(into).exists()


def test_values_are_put_where_they_belong() -> None:
    text = '[run]\nsteps = 5 # five\n[optimizer] # it\n lr=1e-3\n[[source]]\nsteps = "no"'
    found = with_values(text, {"run.steps": 6, "optimizer.clip": 0.5, "engine.device": "cpu"})
    assert found == (
        "[run]\nsteps = 6 # five\n[optimizer] # it\nclip = 0.5\n lr=1e-3\n"
        '[[source]]\nsteps = "no"\n\n[engine]\ndevice = "cpu"\n'
    )
    assert with_values(text, {}) == text
