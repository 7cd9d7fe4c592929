"""Records of forks: written in both, read strictly, believed by what stands there."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from andread.rundir import lineage
from andread.rundir.errors import DataError
from andread.rundir.layout import RunDirectory
from andread.rundir.lineage import Record
from tests.rundir import helpers


def record(parent: RunDirectory, fork: RunDirectory, **more: object) -> Record:
    data = parent.history.read_bytes()
    end = data.index(b'{"step":5') - 2
    fields = {
        "id": "0123456789ab",
        "parent": str(parent.path),
        "fork": str(fork.path),
        "step": 4,
        "sha256": "ab" * 32,
        "history_length": end,
        "history_sha256": helpers.sha256(data[:end]),
        "policy": "p",
        "t": 1.5,
        "changes": ({"key": "optimizer.lr", "old": 0.1, "new": 0.2},),
        "shared": {"step_000004.bin": "copy"},
    }
    return Record(**(fields | more))  # type: ignore[arg-type]


@pytest.fixture
def fork(tmp_path: Path) -> RunDirectory:
    path = tmp_path / "fork"
    path.mkdir()
    found = RunDirectory(path)
    found.settings.touch()
    return found


def test_it_comes_back_as_it_was_written(run: RunDirectory, fork: RunDirectory) -> None:
    given = record(run, fork)
    lineage.write(fork.lineage, given)
    lineage.record_in_parent(run, given)
    assert lineage.read(fork.lineage) == given
    (path,) = lineage.forks(run)
    assert path == run.fork(given.id) and lineage.read(path) == given
    assert json.loads(path.read_bytes())["changes"] == list(given.changes)


def test_none_is_none(run: RunDirectory) -> None:
    assert lineage.read(run.lineage) is None and lineage.forks(run) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"id": "x"}', '{"id": "a", "unknown": 1}'])
def test_damage_is_told(run: RunDirectory, text: str) -> None:
    run.lineage.write_text(text)
    with pytest.raises(DataError, match="damaged"):
        lineage.read(run.lineage)


def test_a_fork_is_known_by_its_id(run: RunDirectory, fork: RunDirectory) -> None:
    given = record(run, fork)
    assert not lineage.is_the_fork(fork, given), "no record in it"
    lineage.write(fork.lineage, given)
    assert lineage.is_the_fork(fork, given)
    assert not lineage.is_the_fork(fork, dataclasses.replace(given, id="other"))


def test_a_parent_is_known_by_its_record_or_its_history(
    run: RunDirectory, fork: RunDirectory
) -> None:
    given = record(run, fork)
    assert not lineage.is_the_parent(run, given), "no run.toml"
    run.settings.touch()
    assert lineage.is_the_parent(run, given), "its history begins so"
    assert not lineage.is_the_parent(fork, given)
    changed = dataclasses.replace(given, history_sha256="00" * 32)
    assert not lineage.is_the_parent(run, changed)
    lineage.record_in_parent(run, changed)
    assert lineage.is_the_parent(run, changed)


def test_ids_differ() -> None:
    assert len({lineage.new_id() for _ in range(100)}) == 100
