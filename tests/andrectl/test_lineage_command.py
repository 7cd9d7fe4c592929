"""andrectl lineage: the tree from any member, whatever is missing or damaged."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from andread.rundir import lineage
from andread.rundir.layout import RunDirectory
from tests.andrectl.test_fork_command import prepare


@pytest.fixture
def family(andrectl, trained, tmp_path) -> dict[str, RunDirectory]:
    """A parent, its forks at 100 and 200, and a fork of the first of them."""
    prepare(trained)
    for name, of, more in (
        ("b", trained.path, ("--at", 200, "--caps", "code=0.4")),
        ("a", trained.path, ("--at", 100)),
        ("c", tmp_path / "a", ("--set", "optimizer.lr=1e-4")),
    ):
        done = andrectl("--run", of, "fork", "--into", tmp_path / name, *more)
        assert done.exit_code == 0, done.stderr
    return {"parent": trained} | {name: RunDirectory(tmp_path / name) for name in "abc"}


def told(andrectl, run: RunDirectory) -> dict:
    result = andrectl("--run", run.path, "lineage", "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_the_tree_as_text(andrectl, family) -> None:
    paths = {name: run.path for name, run in family.items()}
    shown = andrectl("--run", paths["c"], "lineage").stdout.splitlines()
    assert shown == [
        f"{paths['parent']}  at step 250, stopped",
        f"├─ {paths['a']}  from step 100: null fork  at step 100, stopped",
        f"│  └─ {paths['c']}  from step 100: optimizer.lr: 0.003 → 0.0001  at step 100, stopped"
        "  ← this run",
        f"└─ {paths['b']}  from step 200: caps.code: none → 0.4  at step 200, stopped",
    ]


def test_it_is_the_same_tree_from_every_member(andrectl, family) -> None:
    roots = []
    for run in family.values():
        found = told(andrectl, run)
        assert found["schema"] == 1 and found["run"] == str(run.path)
        text = json.dumps(found["root"]).replace('"asked": true', '"asked": false')
        assert text != json.dumps(found["root"]), "which one was asked for"
        roots.append(text)
    assert len(set(roots)) == 1


def test_a_run_alone(andrectl, trained) -> None:
    result = andrectl("--run", trained.path, "lineage")
    assert result.stdout == f"{trained.path}  at step 250, stopped  ← this run\n"
    assert "no fork, and has none" in result.stderr


def test_a_parent_that_is_gone(andrectl, family) -> None:
    shutil.rmtree(family["parent"].path)
    root = told(andrectl, family["a"])["root"]
    assert (root["path"], root["state"]) == (str(family["parent"].path), "missing")
    assert [node["path"] for node in root["forks"]] == [str(family["a"].path)]
    assert [node["at"] for node in root["forks"][0]["forks"]] == [100]


def test_another_run_in_the_place_of_the_parent(andrectl, family) -> None:
    parent = family["parent"]
    shutil.rmtree(parent.path)
    shutil.copytree(family["b"].path, parent.path)
    parent.lineage.unlink()
    parent.history.write_bytes(b"[\n\n]\n")
    assert told(andrectl, family["a"])["root"]["state"] == "another run"


def test_a_record_that_is_damaged(andrectl, family) -> None:
    parent = family["parent"]
    (first, _) = lineage.forks(parent)
    first.write_text("{")
    found = told(andrectl, parent)
    assert len(found["root"]["forks"]) == 1 and found["damaged"][0]["file"] == first.name
    family["c"].lineage.write_text("[]")
    found = told(andrectl, family["c"])
    assert found["root"]["path"] == str(family["c"].path) and found["damaged"]
    assert family["c"].path.name in andrectl("--run", family["c"].path, "lineage").stdout


def test_records_that_lead_in_a_circle(andrectl, family) -> None:
    parent, child = family["parent"], family["a"]
    record = lineage.read(child.lineage)
    assert record is not None
    back = dataclasses.replace(record, id="f" * 12, parent=str(child.path), fork=str(parent.path))
    lineage.write(parent.lineage, back)
    lineage.record_in_parent(child, back)
    for run in (parent, child):
        json.dumps(told(andrectl, run))


def test_a_lone_run_without_history(andrectl, run: RunDirectory, tmp_path: Path) -> None:
    assert told(andrectl, run)["root"]["step"] == 0
