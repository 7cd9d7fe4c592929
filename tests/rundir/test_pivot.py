"""The journal and the archive of a pivot: whole, durable, byte for byte."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from pathlib import Path

import pytest

from andread.rundir import checkpoint, files, history, pivot
from andread.rundir.checkpoint import InvalidCheckpoint
from andread.rundir.errors import DataError
from andread.rundir.history import LossHistory
from andread.rundir.layout import RunDirectory
from andread.rundir.pivot import Journal
from andread.rundir.policy import Policy, read_policies, write_policies

BASE = Policy()
TARGET = Policy(caps={"code": 0.3})
JOURNAL = Journal(
    target=dataclasses.asdict(TARGET), base=BASE.id, at="cadence", running=True, t=1.0
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A directory with policies and sidecars of any bytes."""
    run = RunDirectory(tmp_path)
    write_policies(run.policy, [BASE])
    run.samples.write_bytes(b"\x00samples\xff\n")
    run.state.write_bytes(b"{ torn")
    return run


def test_a_journal_comes_back_as_it_was_written(run: RunDirectory) -> None:
    assert pivot.read(run) is None
    journal = dataclasses.replace(JOURNAL, step=200, archive="pivot_000200", pinned=True)
    pivot.write(run, journal)
    found = pivot.read(run)
    assert found is not None and found.policy() == journal.policy()
    assert dataclasses.replace(found, target=journal.target) == journal
    pivot.remove(run)
    assert pivot.read(run) is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"step": 3}', b'{"at": "noon"}', b"\xff"])
def test_a_damaged_journal_is_named(run: RunDirectory, content: bytes) -> None:
    run.pivot.write_bytes(content)
    with pytest.raises(DataError, match=r"\.pivot\.json is damaged"):
        pivot.read(run)


def test_committed_is_what_policy_json_says(run: RunDirectory) -> None:
    journal = dataclasses.replace(JOURNAL, step=200)
    assert not JOURNAL.committed([BASE])
    assert not journal.committed([BASE])
    write_policies(run.policy, [BASE, dataclasses.replace(TARGET, begins_after=200)])
    assert journal.committed(read_policies(run.policy))
    assert not dataclasses.replace(journal, step=201).committed(read_policies(run.policy))


def test_the_archive_is_byte_for_byte_and_its_manifest_has_the_hashes(run: RunDirectory) -> None:
    name = pivot.archive_name(run, 200)
    assert name == "pivot_000200"
    manifest = pivot.archive(run, name, {"step": 200})
    for path in (run.samples, run.state, run.policy):
        data = path.read_bytes()
        assert (run.archive / name / path.name).read_bytes() == data
        told = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        assert manifest["files"][path.name] == told
    assert pivot.read_manifest(run, name) == manifest and manifest["step"] == 200
    assert not list((run.archive / name).glob("*.tmp-*"))


def test_a_sidecar_that_is_not_there_is_none(run: RunDirectory) -> None:
    run.state.unlink()
    assert pivot.archive(run, "pivot_000001", {})["files"][".state.json"] is None
    pivot.restore(run, "pivot_000001")
    assert not run.state.exists()


def test_a_step_that_saw_several_pivots_has_several_archives(run: RunDirectory) -> None:
    for expected in ("pivot_000200", "pivot_000200-2", "pivot_000200-3"):
        name = pivot.archive_name(run, 200)
        assert name == expected
        pivot.archive(run, name, {})
    pivot.archive(run, "pivot_000100", {})
    (run.archive / "notes").mkdir()
    assert pivot.archives(run) == [
        "pivot_000100",
        "pivot_000200",
        "pivot_000200-2",
        "pivot_000200-3",
    ]


def test_restoring_gives_the_sidecars_back_and_leaves_policy_json(run: RunDirectory) -> None:
    before = run.samples.read_bytes(), run.state.read_bytes()
    pivot.archive(run, "pivot_000200", {})
    run.samples.write_bytes(b"new")
    run.state.unlink()
    write_policies(run.policy, [TARGET])
    pivot.restore(run, "pivot_000200")
    assert (run.samples.read_bytes(), run.state.read_bytes()) == before
    assert read_policies(run.policy) == [TARGET]


def test_discarding_takes_an_unfinished_archive_too(run: RunDirectory) -> None:
    folder = run.archive / "pivot_000200"
    folder.mkdir(parents=True)
    (folder / ".samples.json.tmp-1234").write_bytes(b"half")
    pivot.discard(run, "pivot_000200")
    assert not folder.exists()
    pivot.discard(run, "pivot_000200")
    pivot.discard(run, "")


@pytest.mark.parametrize("name", ["..", "../data", "pivot_000200/../..", "notes", "pivot_2"])
def test_a_name_that_is_no_archive_touches_nothing(run: RunDirectory, name: str) -> None:
    run.data.mkdir()
    run.archive.mkdir()
    with pytest.raises(DataError, match="no name of an archive"):
        pivot.discard(run, name)
    assert run.data.exists() and run.archive.exists()


def test_a_full_disk_leaves_no_manifest(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        if path.name == ".state.json":
            raise OSError(28, "No space left on device")
        real(path, data)

    real = files.replace
    monkeypatch.setattr(files, "replace", full)
    with pytest.raises(OSError, match="No space"):
        pivot.archive(run, "pivot_000200", {})
    assert not (run.archive / "pivot_000200" / pivot.MANIFEST).exists()


def test_the_hashes_of_the_regions_are_those_of_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "step_000003.bin"
    data = struct.pack("<ii6f", 3, 2, *range(6))
    path.write_bytes(data)
    parts = {"file": data, "weights": data[8:16], "m": data[16:24], "v": data[24:]}
    expected = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}
    assert checkpoint.hashes(path) == expected
    path.write_bytes(data[:-1])
    with pytest.raises(InvalidCheckpoint, match="region v"):
        checkpoint.hashes(path)


def test_what_follows_a_prefix_of_the_history(tmp_path: Path) -> None:
    path = tmp_path / ".loss.json"
    record = LossHistory.create(path)
    lengths = [record.prefix.length]
    for step in (1, 2, 3):
        record.record({"step": step, "loss": 1.0, "pulls": {}})
        lengths.append(record.prefix.length)
    record.close()
    for step in (0, 1, 2):
        found = history.entry_after(path, lengths[step], step)
        assert found is not None and found["step"] == step + 1
        assert not history.ends_at(path, lengths[step])
    assert history.entry_after(path, lengths[3], 3) is None
    assert history.ends_at(path, lengths[3])
    with path.open("ab") as stream:
        stream.write(b"{")
    assert not history.ends_at(path, lengths[3])
