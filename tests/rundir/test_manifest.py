import dataclasses

import orjson
import pytest

from andread.rundir.errors import DataError, MissingError
from andread.rundir.manifest import (
    Manifest,
    Skipped,
    dtype_for,
    fingerprint_of,
    read_manifest,
    write_manifest,
)

A, B, C = ("a" * 64, "b" * 64, "c" * 64)


def manifest(**changes) -> Manifest:
    values = {
        "version": 1,
        "source": "books",
        "dtype": "uint16",
        "vocabulary": 512,
        "documents": 3,
        "train_tokens": 101,
        "train_sha256": A,
        "validation_tokens": 0,
        "validation_sha256": B,
        "input_bytes": 1000,
        "inputs": C,
        "recipe": C,
        "tokenizer": C,
        "fingerprint": fingerprint_of("uint16", A, B),
        "skipped": {"not UTF-8": Skipped(2, ("x", "y"))},
    }
    return Manifest(**(values | changes))


def test_what_is_written_is_read(tmp_path):
    write_manifest(tmp_path / "m.json", manifest())
    assert read_manifest(tmp_path / "m.json") == manifest()


def test_tokens_that_were_never_counted_are_unique_and_keep_their_fingerprint():
    assert manifest().unique_share == 1.0
    assert manifest(unique_tokens=25, train_tokens=100).unique_share == 0.25
    assert fingerprint_of("uint16", A, B, 0) == fingerprint_of("uint16", A, B)
    assert fingerprint_of("uint16", A, B, 1) != fingerprint_of("uint16", A, B)
    assert manifest().fingerprint == (
        "7e3477de7a83f05b6af8a0e3b61f4ff24698bf3e05172313d29b60430bec5c62"
    )


def test_windows_overlap_by_one_token():
    assert manifest(train_tokens=101).windows("train", 10) == 10
    assert manifest(train_tokens=100).windows("train", 10) == 9
    assert manifest(train_tokens=0).windows("train", 10) == 0
    assert manifest(dtype="uint32").size("train") == 404


def test_a_missing_manifest_names_the_command(tmp_path):
    with pytest.raises(MissingError) as caught:
        read_manifest(tmp_path / "m.json")
    assert "andrectl prepare" in caught.value.hint


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"dtype": "int8"},
        {"train_tokens": -1},
        {"train_tokens": "101"},
        {"train_sha256": "x" * 64},
        {"train_sha256": C},  # no longer what the fingerprint covers
        {"unique_tokens": 50},  # likewise
        {"unique_tokens": 102, "fingerprint": fingerprint_of("uint16", A, B, 102)},
        {"fingerprint": A},
        {"vocabulary": 70_000},  # does not fit uint16
        {"unknown": 1},
        {"skipped": {"r": {"count": 0}}},
        {"skipped": {"r": 3}},
    ],
)
def test_a_damaged_manifest_is_a_data_error(tmp_path, change):
    table = dataclasses.asdict(manifest()) | change
    (tmp_path / "m.json").write_bytes(orjson.dumps(table))
    with pytest.raises(DataError):
        read_manifest(tmp_path / "m.json")


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"version": 1', b"\0" * 100])
def test_rubbish_is_a_data_error(tmp_path, text):
    (tmp_path / "m.json").write_bytes(text)
    with pytest.raises(DataError):
        read_manifest(tmp_path / "m.json")


def test_the_smallest_dtype_that_holds_the_vocabulary():
    assert (dtype_for(65_536), dtype_for(65_537)) == ("uint16", "uint32")
