"""The staging block, the hash that runs alongside, and the early reading into it."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

import pytest

from andread.rundir import files
from andread.rundir.early import EarlyRead
from andread.rundir.hashing import ThreadedHash
from andread.rundir.layout import RunDirectory
from andread.rundir.staging import Staging
from tests.rundir.helpers import N_PARAMS, image, sha256


def test_the_block_is_laid_out_like_the_file() -> None:
    staging = Staging(3)
    for number, region in enumerate(staging.regions):
        region[:] = struct.pack("<3f", *[number + 1.0] * 3)
    staging.stamp(7)
    assert bytes(staging.file) == struct.pack("<ii9f", 7, 3, 1, 1, 1, 2, 2, 2, 3, 3, 3)


def test_a_hash_alongside_is_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    data, beats = os.urandom(10_000), []
    monkeypatch.setattr(files, "CHUNK", 999)
    with ThreadedHash(data[:10]) as digest:
        digest.update(memoryview(data)[10:5000]).result()
        digest.update(memoryview(data)[5000:])
        assert digest.hexdigest(lambda: beats.append(1)) == hashlib.sha256(data).hexdigest()
    assert len(beats) == 5 + 6, "each piece is a sign of life"


def test_an_early_read_is_taken_once(run: RunDirectory) -> None:
    early = EarlyRead(run)
    staging = early.staging(N_PARAMS)
    assert bytes(staging.file) == image(8)
    assert early.take(run.checkpoint(8)) == sha256(image(8))
    assert early.take(run.checkpoint(8)) is None, "the memory may hold something else by now"


def test_an_early_read_is_of_one_file(run: RunDirectory) -> None:
    assert EarlyRead(run).take(run.checkpoint(4)) is None


def test_a_model_of_another_size_gets_memory_of_its_own(run: RunDirectory) -> None:
    early = EarlyRead(run)
    assert early.staging(N_PARAMS + 1).n_params == N_PARAMS + 1
    assert early.take(run.checkpoint(8)) is None


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.unlink(),
        lambda path: os.truncate(path, 30),
        lambda path: path.write_bytes(struct.pack("<ii", 8, -1) + bytes(12 * N_PARAMS)),
        lambda path: path.with_suffix(".json").write_bytes(b"{}"),
    ],
    ids=["gone", "cut", "no header", "no companion"],
)
def test_what_cannot_be_read_early_is_left_to_whoever_loads(
    run: RunDirectory, harm: object
) -> None:
    path: Path = run.checkpoint(8)
    harm(path)  # type: ignore[operator]
    early = EarlyRead(run)
    assert early.take(path) is None
    assert early.staging(N_PARAMS).n_params == N_PARAMS


def test_a_run_without_checkpoints_has_nothing_to_read(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    early = EarlyRead(run)
    assert early.take(run.checkpoint(0)) is None
    assert len(early.staging(2).file) == 8 + 24
