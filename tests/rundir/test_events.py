"""Events: one line each, none lost, torn ones skipped, ages that no clock change disturbs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from andread.rundir import clock, events
from andread.rundir.errors import DataError
from tests.rundir.helpers import STRANGERS, end, fill, put_stranger, spawn


def test_an_event_is_one_line_of_json(tmp_path: Path) -> None:
    path = tmp_path / ".events.json"
    made = events.emit(path, "checkpoint", step=100, reasons=("cadence",), text="two\nlines")
    line, rest = path.read_bytes().split(b"\n", 1)
    assert rest == b""
    assert json.loads(line) == {**made, "reasons": ["cadence"]}
    assert list(made)[:4] == ["event", "t", "boot", "up"]
    assert made["event"] == "checkpoint" and made["step"] == 100
    assert made["boot"] == clock.boot_id()
    assert abs(made["t"] - time.time()) < 5
    assert list(events.read(path)) == [json.loads(line)]


def test_an_acknowledgement_may_carry_a_path_and_a_kind(tmp_path: Path) -> None:
    path = tmp_path / ".events.json"
    events.emit(path, "snapshot", path="step_000100.bin", kind="signal", sha256="0" * 64)
    (found,) = events.read(path)
    assert (found["path"], found["kind"]) == ("step_000100.bin", "signal")


def test_reading_from_an_offset(tmp_path: Path) -> None:
    path = tmp_path / ".events.json"
    assert list(events.read(path)) == []
    events.emit(path, "started")
    offset = path.stat().st_size
    events.emit(path, "stopped")
    assert [e["event"] for e in events.read(path)] == ["started", "stopped"]
    assert [e["event"] for e in events.read(path, offset)] == ["stopped"]
    assert list(events.read(path, path.stat().st_size)) == []


def test_bad_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / ".events.json"
    events.emit(path, "first")
    with path.open("ab") as stream:
        stream.write(b'\n\nnull\n[]\n3\n{"no":1}\n' + b"\0" * 5000 + b"\n\xff\n" + b"[" * 9999)
        stream.write(b'\n{"event":"torn","t":17')
    events.emit(path, "last")
    assert [e["event"] for e in events.read(path)] == ["first", "last"]


def test_cut_at_every_byte_the_next_event_is_whole(tmp_path: Path) -> None:
    path = tmp_path / ".events.json"
    events.emit(path, "first")
    size = path.stat().st_size
    events.emit(path, "second")
    data = path.read_bytes()
    for cut in range(size, len(data)):
        path.write_bytes(data[:cut])
        events.emit(path, "third")
        kinds = [e["event"] for e in events.read(path)]
        whole = cut == len(data) - 1  # only its newline was missing
        assert kinds == (["first", "second", "third"] if whole else ["first", "third"])


def test_full_disk(tmpfs: Callable[[str], Path]) -> None:
    disk = tmpfs("16k")
    path = disk / ".events.json"
    events.emit(path, "first", text="x" * 3900)
    ballast = fill(disk)
    with pytest.raises(OSError, match="No space"):
        events.emit(path, "lost", text="x" * 3900)
    assert [e["event"] for e in events.read(path)] == ["first"]
    ballast.unlink()
    events.emit(path, "next")
    assert [e["event"] for e in events.read(path)] == ["first", "next"]


@pytest.mark.parametrize("kind", STRANGERS)
def test_no_regular_file_never_hangs(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ".events.json"
    put_stranger(path, kind)
    with pytest.raises(DataError, match="not a regular file"):
        events.emit(path, "lost")
    with pytest.raises(DataError, match="not a regular file"):
        list(events.read(path))


def test_killed_writers_tear_no_line_of_others(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from andread.rundir import events
print("ready", flush=True)
for index in range(10**9):
    events.emit(Path(sys.argv[1]), "tick", index=index, text="x" * 300)
"""
    path = tmp_path / ".events.json"
    processes = [spawn(script, path) for _ in range(2)]
    time.sleep(0.5)
    for process in processes:
        end(process)
    events.emit(path, "last")
    lines = [line for line in path.read_bytes().splitlines() if line]
    found = list(events.read(path))
    assert found[-1]["event"] == "last"
    assert len(found) > 10 and len(lines) - len(found) <= 2


@pytest.mark.parametrize(
    ("event", "age"),
    [
        (lambda: {"boot": clock.boot_id(), "up": clock.boot_seconds() - 60, "t": 0.0}, 60.0),
        (lambda: {"boot": clock.boot_id(), "up": clock.boot_seconds() + 60, "t": 0.0}, 0.0),
        (lambda: {"boot": "another", "up": 5.0, "t": time.time() - 3600}, 3600.0),
        (lambda: {"boot": "another", "up": 5.0, "t": time.time() + 3600}, 0.0),
    ],
    ids=["this boot, the wall clock set meanwhile", "never negative", "reboot", "clock set back"],
)
def test_age(event: Callable[[], dict[str, Any]], age: float) -> None:
    assert events.age(event()) == pytest.approx(age, abs=2.0)
