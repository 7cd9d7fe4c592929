from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from andread.rundir.errors import DataError
from andread.rundir.history import CLOSING, OPENING, LossHistory
from andread.rundir.survey import Survey, survey


def write(path: Path, steps: int, first: int = 1) -> dict[int, tuple[int, str]]:
    """Write a history; return what each step would vouch for."""
    history = LossHistory.create(path, first - 1)
    prefixes = {}
    for step in range(first, first + steps):
        history.record({"step": step, "loss": 1 / step, "pulls": {"a": 8}})
        prefixes[step] = (history.prefix.length, history.prefix.sha256)
    history.close()
    return prefixes


def kinds(found: Survey) -> list[str]:
    return [fault.kind for fault in found.faults]


def test_a_whole_history(tmp_path: Path) -> None:
    prefixes = write(tmp_path / "h", 20)
    lengths = [length for length, _ in prefixes.values()]
    found = survey(tmp_path / "h", lengths, prefixes)
    assert (found.entries, found.first, found.last, found.faults) == (20, 1, 20, [])
    assert found.digests == dict(prefixes.values())
    assert found.ends == {step: length for step, (length, _) in prefixes.items()}
    assert found.size == (tmp_path / "h").stat().st_size


def test_any_length_within_lines_and_at_the_ends(tmp_path: Path) -> None:
    write(tmp_path / "h", 5)
    data = (tmp_path / "h").read_bytes()
    lengths = [1, 2, 3, 50, 50, 51, len(data) - 1, len(data), len(data) + 1]
    found = survey(tmp_path / "h", lengths)
    assert found.digests == {
        n: hashlib.sha256(data[:n]).hexdigest() for n in lengths if n <= len(data)
    }


def test_empty_and_later_beginnings(tmp_path: Path) -> None:
    write(tmp_path / "h", 0)
    found = survey(tmp_path / "h", [2])
    assert (found.entries, found.first, found.last, found.faults) == (0, 0, 0, [])
    assert found.digests == {2: hashlib.sha256(OPENING).hexdigest()}
    write(tmp_path / "h", 3, first=1001)
    found = survey(tmp_path / "h")
    assert (found.entries, found.first, found.last, found.faults) == (3, 1001, 1003, [])


def removed(lines: list[bytes]) -> None:
    del lines[5]


def doubled(lines: list[bytes]) -> None:
    lines.insert(5, lines[5])


def exchanged(lines: list[bytes]) -> None:
    lines[5], lines[6] = lines[6], lines[5]


def without_comma(lines: list[bytes]) -> None:
    lines[5] = lines[5].rstrip(b",")


def zeros(lines: list[bytes]) -> None:
    lines[5] = bytes(len(lines[5]) - 1) + b","


def loss_gone(lines: list[bytes]) -> None:
    lines[5] = b'{"step":5,"loss":null,"pulls":{"a":8}},'


def loss_a_word(lines: list[bytes]) -> None:
    lines[5] = b'{"step":5,"loss":true,"pulls":{"a":8}},'


def pulls_negative(lines: list[bytes]) -> None:
    lines[5] = b'{"step":5,"loss":1.0,"pulls":{"a":-8}},'


def opening_gone(lines: list[bytes]) -> None:
    lines[0] = b"("


def last_with_comma(lines: list[bytes]) -> None:
    lines[-3] += b","


@pytest.mark.parametrize(
    ("change", "expected", "said"),
    [
        (removed, ["order"], "step 6 follows step 4: 5 is missing"),
        (doubled, ["order"], "step 5 is there twice"),
        (exchanged, ["order", "order"], "step 5 stands behind step 6"),
        (without_comma, ["torn"], "separator behind step 5"),
        (zeros, ["torn", "order"], "bytes after step 4 are no entry"),
        (loss_gone, ["content"], "step 5 has no loss"),
        (loss_a_word, ["content"], "no number"),
        (pulls_negative, ["content"], "no counts of pulls"),
        (opening_gone, ["torn"], "at its beginning"),
        (last_with_comma, ["torn"], "separator behind step 20"),
    ],
)
def test_each_fault_has_its_kind(
    tmp_path: Path, change: Callable[[list[bytes]], None], expected: list[str], said: str
) -> None:
    write(tmp_path / "h", 20)
    lines = (tmp_path / "h").read_bytes().split(b"\n")
    change(lines)
    (tmp_path / "h").write_bytes(b"\n".join(lines))
    found = survey(tmp_path / "h")
    assert kinds(found) == expected
    assert any(said in fault.what for fault in found.faults)


def test_every_cut_of_the_end_is_torn(tmp_path: Path) -> None:
    write(tmp_path / "h", 3)
    data = (tmp_path / "h").read_bytes()
    for length in range(len(OPENING), len(data)):
        (tmp_path / "h").write_bytes(data[:length])
        assert "torn" in kinds(survey(tmp_path / "h")), data[:length]
        assert not {"order"} & set(kinds(survey(tmp_path / "h")))
    (tmp_path / "h").write_bytes(data + b"x")
    assert kinds(survey(tmp_path / "h")) == ["torn"]


def test_faults_are_bounded_and_skipped_steps_are_none(tmp_path: Path) -> None:
    body = b",\n".join(b"{}" for _ in range(5000))
    (tmp_path / "h").write_bytes(OPENING + body + CLOSING)
    assert len(survey(tmp_path / "h").faults) == 100
    entry = b'{"step":1,"loss":null,"skipped":"nonfinite","pulls":{"a":1}}'
    (tmp_path / "h").write_bytes(OPENING + entry + CLOSING)
    assert survey(tmp_path / "h").faults == []


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        survey(tmp_path / "h")
    (tmp_path / "h").symlink_to("/dev/zero")
    with pytest.raises(DataError):
        survey(tmp_path / "h")
