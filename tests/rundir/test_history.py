"""The loss history: no step twice, none lost, none changed, whatever cut it short."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from andread.rundir import disk, files, history
from andread.rundir.errors import DataError
from andread.rundir.history import LossHistory
from tests.rundir.helpers import (
    STRANGERS,
    descriptors,
    entry,
    fill,
    history_bytes,
    put_stranger,
    python,
    sha256,
    traced,
)

CALL = re.compile(r"^\d+ +(\w+)\(.*?(?:, (\d+))?\) += (-?\d+)", re.M)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


def recorded(path: Path, last: int, first: int = 1) -> LossHistory:
    """Return a history with entries from `first` to `last`, still open."""
    loss = LossHistory.create(path, first - 1)
    for step in range(first, last + 1):
        assert loss.record(entry(step)) is None
    return loss


def prefix_length(last: int) -> int:
    """Return the bytes up to the brace of the entry of `last`, found by hand."""
    return len(history_bytes(map(entry, range(1, last + 1)))) - len(b"\n]\n")


# ---------------------------------------------------------------- the bytes


def test_new_history_is_an_empty_array(tmp_path: Path) -> None:
    loss = LossHistory.create(tmp_path / ".loss.json")
    assert loss.path.read_bytes() == b"[\n\n]\n"
    assert json.loads(loss.path.read_bytes()) == []
    assert (loss.step, loss.last_step, loss.replaying) == (0, 0, False)
    loss.close()


def test_file_is_valid_json_between_any_two_appends(tmp_path: Path) -> None:
    path = tmp_path / ".loss.json"
    loss = LossHistory.create(path)
    before = b""
    for step in range(1, 8):
        loss.record(entry(step))
        data = path.read_bytes()
        assert data == history_bytes(map(entry, range(1, step + 1)))
        assert data.startswith(before), "bytes before the closing bracket never change"
        assert loss.prefix.length == prefix_length(step) == len(data) - 3
        assert loss.prefix.sha256 == sha256(data[:-3])
        before = data[:-3]
    loss.close()


def test_golden_bytes(tmp_path: Path) -> None:
    path = tmp_path / ".loss.json"
    loss = LossHistory.create(path)
    loss.record({"step": 1, "loss": 0.1, "pulls": {"a": 2}})
    loss.record({"step": 2, "loss": None, "skipped": "nonfinite", "pulls": {}})
    loss.close()
    assert path.read_bytes() == (
        b'[\n{"step":1,"loss":0.1,"pulls":{"a":2}},\n'
        b'{"step":2,"loss":null,"skipped":"nonfinite","pulls":{}}\n]\n'
    )


def test_floats_come_back_as_the_same_bits(tmp_path: Path) -> None:
    values = [1 / 3, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, -0.0, 2.0**-126]
    loss = LossHistory.create(tmp_path / ".loss.json")
    for step, value in enumerate(values, 1):
        loss.record({"step": step, "loss": value, "pulls": {}})
    loss.close()
    found = [item["loss"].hex() for item in history.read(loss.path)]
    assert found == [value.hex() for value in values]


def test_steps_out_of_order_are_our_own_fault(tmp_path: Path) -> None:
    loss = recorded(tmp_path / ".loss.json", 3)
    for step in (3, 5, 2):
        with pytest.raises(AssertionError):
            loss.record(entry(step))
    loss.record(entry(4))
    loss.close()
    assert [item["step"] for item in history.read(loss.path)] == [1, 2, 3, 4]


def test_entry_that_cannot_be_written_as_json_leaves_no_gap(tmp_path: Path) -> None:
    loss = recorded(tmp_path / ".loss.json", 2)
    prefix = loss.prefix
    with pytest.raises(TypeError):
        loss.record(entry(3) | {"pulls": object()})
    assert (loss.step, loss.prefix) == (2, prefix)
    loss.record(entry(3))
    loss.close()
    assert loss.path.read_bytes() == history_bytes(map(entry, range(1, 4)))


def test_history_may_begin_behind_a_step(tmp_path: Path) -> None:
    loss = recorded(tmp_path / ".loss.json", 1003, first=1001)
    length = loss.prefix.length
    loss.close()
    again, cut = LossHistory.resume(loss.path, 1000, len(history.OPENING))
    assert (cut, again.step, again.last_step) == (0, 1000, 1003)
    again.close()
    again, _ = LossHistory.resume(loss.path, 1003, length)
    again.record(entry(1004))
    again.close()
    assert loss.path.read_bytes() == history_bytes(map(entry, range(1001, 1005)))


# ---------------------------------------------------------------- any crash


def whole_entries(data: bytes, start: int, step: int) -> tuple[int, int]:
    """Return how many whole consecutive entries follow `start`, and where the last one ends.

    The rule again, read another way: separator, object on a line of its own, next step.
    """
    count, position = 0, start
    while True:
        separator = b"" if position == 2 else b",\n"
        if not data.startswith(separator, position):
            return count, position
        body_from = position + len(separator)
        line = re.compile(rb"[^\n]*").match(data, body_from)
        assert line is not None
        body = line[0].rstrip(b",")
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return count, position
        if not isinstance(value, dict) or value.get("step") != step + count + 1:
            return count, position
        count, position = count + 1, body_from + len(body)


GARBAGE = st.one_of(
    st.just(b""),
    st.binary(max_size=40),
    st.integers(1, 9000).map(bytes),
    st.sampled_from(
        [
            b"\n]\n",
            b"\n]",
            b",\n",
            b",,\n",
            b"}\n]\n",
            b',\n{"step":99}\n]\n',
            b',\n{"step":3}\n]\n',
            b',\n{"step":4,"loss":1.5,"pulls":{}},\n{"step":5}\n]\n',
            b"\n" * 7,
            b"[" * 3000 + b"\n",
            b',\n{"step":' + b"[" * 5000,
            b'{"step":1}',
            b"\xff\xfe\x00",
        ]
    ),
)


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    vouched=st.integers(0, 4),
    tail=st.integers(0, 5),
    cut=st.floats(0, 1),
    hole=st.one_of(st.none(), st.tuples(st.floats(0, 1), st.integers(1, 300))),
    garbage=GARBAGE,
)
@example(vouched=2, tail=3, cut=1.0, hole=(0.3, 20), garbage=b"")
@example(vouched=0, tail=0, cut=0.0, hole=None, garbage=b"\0" * 4096)
@example(vouched=3, tail=1, cut=1.0, hole=None, garbage=b",\n")
def test_resume_keeps_exactly_the_whole_consecutive_entries(
    vouched: int, tail: int, cut: float, hole: tuple[float, int] | None, garbage: bytes
) -> None:
    """A crash may cut the tail at any byte, leave a hole of zeros, or leave anything at all."""
    undisturbed = history_bytes(map(entry, range(1, vouched + tail + 1)))
    length = prefix_length(vouched)
    end = length + round(cut * (len(undisturbed) - length))
    data = bytearray(undisturbed[:end])
    if hole and end > length:
        start = length + int(hole[0] * (end - length - 1))
        span = min(hole[1], end - start)
        data[start : start + span] = bytes(span)
    if end < len(undisturbed) or hole:
        data += garbage
    count, kept_to = whole_entries(bytes(data), length, vouched)

    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        path = Path(directory, ".loss.json")
        path.write_bytes(data)
        loss, gone = LossHistory.resume(path, vouched, length)
        after = path.read_bytes()
        assert after == bytes(data[:kept_to]) + b"\n]\n"
        assert [item["step"] for item in json.loads(after)] == list(range(1, vouched + count + 1))
        assert (loss.step, loss.last_step) == (vouched, vouched + count)
        assert gone == (0 if after == data else max(0, len(data) - kept_to))
        assert loss.prefix == history.Prefix(length, sha256(after[:length]))

        for step in range(vouched + 1, vouched + count + 1):  # the replay writes nothing
            assert loss.replaying
            assert loss.record(entry(step)) is not None
            loss.sync()
            assert path.read_bytes() == after
        assert loss.prefix == history.Prefix(kept_to, sha256(after[:kept_to]))

        assert not loss.replaying
        last = vouched + max(count, tail) + 1
        for step in range(vouched + count + 1, last + 1):
            assert loss.record(entry(step)) is None
        loss.sync()
        loss.close()
        final = path.read_bytes()
        assert [item["step"] for item in json.loads(final)] == list(range(1, last + 1))
        assert final.startswith(after[:kept_to])
        assert loss.prefix.sha256 == sha256(final[:-3])


def test_every_single_cut(tmp_path: Path) -> None:
    """Not by chance but one by one: cut three entries behind the prefix at every byte."""
    path = Path(tempfile.mkdtemp(dir=MEMORY)) / ".loss.json"
    undisturbed = history_bytes(map(entry, range(1, 6)))
    length = prefix_length(2)
    ends = [prefix_length(step) for step in range(2, 6)]
    for size in range(length, len(undisturbed) + 1):
        path.write_bytes(undisturbed[:size])
        loss, cut = LossHistory.resume(path, 2, length)
        expected = max(index for index, position in enumerate(ends) if position <= size)
        assert loss.last_step == 2 + expected
        assert cut == (0 if size == len(undisturbed) else size - ends[expected])
        for step in range(3, 6):
            loss.record(entry(step))
        loss.close()
        assert path.read_bytes() == undisturbed, f"cut at byte {size}"
    path.unlink()
    path.parent.rmdir()


def test_zero_filled_hole_before_good_looking_entries(tmp_path: Path) -> None:
    path = tmp_path / ".loss.json"
    data = bytearray(history_bytes(map(entry, range(1, 9))))
    hole = slice(prefix_length(4) + 2, prefix_length(5))
    data[hole] = bytes(hole.stop - hole.start)
    path.write_bytes(data)
    loss, cut = LossHistory.resume(path, 2, prefix_length(2))
    assert loss.last_step == 4, "steps 6 to 8 are whole but no longer consecutive"
    assert cut == len(data) - prefix_length(4)
    loss.close()
    assert path.read_bytes() == history_bytes(map(entry, range(1, 5)))


def test_huge_hole_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / ".loss.json"
    path.write_bytes(history_bytes([entry(1)])[:-3])
    os.truncate(path, 4 << 30)  # sparse
    script = """
import resource, sys
from pathlib import Path
from andread.rundir.history import LossHistory
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
loss, cut = LossHistory.resume(Path(sys.argv[1]), 0, 2)
print(loss.last_step, cut)
"""
    done = python(script, path)
    assert done.returncode == 0, done.stderr
    # the entry runs into zeros on its own line: it cannot be told whole, and is computed again
    assert done.stdout.split()[0] == "0"
    assert path.read_bytes() == b"[\n\n]\n"


def test_history_shorter_than_vouched_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ".loss.json"
    data = history_bytes(map(entry, range(1, 4)))
    path.write_bytes(data)
    with pytest.raises((EOFError, DataError)):
        LossHistory.resume(path, 9, len(data) + 1)
    assert path.read_bytes() == data


@pytest.mark.parametrize("kind", STRANGERS)
def test_no_regular_file_no_history(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ".loss.json"
    path.write_bytes(history_bytes(map(entry, range(1, 4))))
    put_stranger(path, kind)
    with pytest.raises(DataError, match="not a regular file"):
        LossHistory.resume(path, 0, 2)
    with pytest.raises(DataError, match="not a regular file"):
        list(history.read(path))
    with pytest.raises(DataError, match="not a regular file"):
        history.tail(path, 2)
    with pytest.raises(DataError, match="not a regular file"):
        history.prefix_sha256(path, 2)


def test_resume_leaves_no_descriptor_open_when_it_fails(tmp_path: Path) -> None:
    path = tmp_path / ".loss.json"
    path.write_bytes(history_bytes([entry(1)]))
    before = descriptors()
    with pytest.raises((EOFError, DataError)):
        LossHistory.resume(path, 9, 10_000)
    assert descriptors() == before


# ---------------------------------------------------------------- replay as witness


def test_replay_compares_loss_and_pulls_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / ".loss.json"
    recorded(path, 6).close()
    data = path.read_bytes()
    loss, _ = LossHistory.resume(path, 1, prefix_length(1))
    same = loss.record(entry(2) | {"t": 0.0, "lr": 0.0})  # when and how fast do not matter
    assert same == history.Witness(2, 0.0, "")
    off = loss.record(entry(3) | {"loss": entry(3)["loss"] + 0.25})
    assert off is not None and off.difference == pytest.approx(0.25)
    assert "loss" in off.detail
    pulls = loss.record(entry(4) | {"pulls": {"books": 4}})
    assert pulls is not None and pulls.difference == float("inf")
    assert "pulls" in pulls.detail
    gone = loss.record(entry(5) | {"loss": None})
    assert gone is not None and gone.difference == float("inf")
    last = loss.record(entry(6))
    assert last is not None and last.difference == 0.0
    assert path.read_bytes() == data
    assert loss.record(entry(7)) is None
    loss.close()
    assert path.read_bytes() == history_bytes(map(entry, range(1, 8)))


def test_two_skipped_steps_agree(tmp_path: Path) -> None:
    skipped = entry(1) | {"loss": None, "skipped": "nonfinite"}
    loss = LossHistory.create(tmp_path / ".loss.json")
    loss.record(skipped)
    loss.close()
    again, _ = LossHistory.resume(loss.path, 0, 2)
    assert again.record(skipped) == history.Witness(1, 0.0, "")
    again.close()


def test_checkpoint_in_a_replay_vouches_for_its_own_step_only(tmp_path: Path) -> None:
    path = tmp_path / ".loss.json"
    recorded(path, 6).close()
    loss, _ = LossHistory.resume(path, 1, prefix_length(1))
    loss.record(entry(2))
    loss.sync()
    assert loss.prefix.length == prefix_length(2)
    assert loss.prefix.sha256 == sha256(path.read_bytes()[: prefix_length(2)])
    loss.close()


# ---------------------------------------------------------------- what an append costs

COST = """
import os, sys
from pathlib import Path
from andread.rundir.history import LossHistory
path, step, length = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
loss, _ = LossHistory.resume(path, step, length)
entry = {"step": step + 1, "loss": 0.5, "pulls": {}, "pad": "x" * (20 - len(str(step + 1)))}
os.access("/begin", os.F_OK)
loss.record(entry)
os.access("/end", os.F_OK)
"""


def calls_of_one_append(path: Path, step: int) -> list[tuple[str, str]]:
    """Return name and result of every system call on a descriptor or file in one append."""
    done, text = traced(
        COST,
        path,
        step,
        path.stat().st_size - 3,
        trace=path.with_suffix(".trace"),
        options=["-e", "trace=%desc,%file"],
    )
    assert done.returncode == 0, done.stderr
    between = text[text.index('"/begin"') : text.index('"/end"')].splitlines()[1:-1]
    found = [re.search(r"(\w+)\(.*= (-?\d+)", line) for line in between]
    return [(match[1], match[2]) for match in found if match and match[1] != "mmap"]


def test_an_append_costs_the_same_at_entry_200_000_as_at_the_second(tmp_path: Path) -> None:
    small, large = tmp_path / "small.json", tmp_path / "large.json"
    small.write_bytes(history_bytes([entry(1)]))
    large.write_bytes(history_bytes(map(entry, range(1, 200_000))))
    first, late = calls_of_one_append(small, 1), calls_of_one_append(large, 199_999)
    assert [name for name, _ in first] == ["pwrite64"], "one write and nothing else"
    assert late == first
    assert json.loads(large.read_bytes())[-1]["step"] == 200_000


# ---------------------------------------------------------------- failing disks


def test_full_disk_then_space_again_gives_the_undisturbed_file(
    tmpfs: Callable[[str], Path],
) -> None:
    disk = tmpfs("64k")
    path = disk / ".loss.json"
    loss = LossHistory.create(path)
    for step in range(1, 6):
        loss.record(entry(step))
    loss.sync()
    ballast = fill(disk)
    failed = 0
    for step in range(6, 60):
        try:
            loss.record(entry(step))
        except OSError:
            failed += 1
    assert failed > 10, "the disk was not full"
    with pytest.raises(OSError):
        loss.sync()
    assert [item["step"] for item in history.read(path)][:5] == [1, 2, 3, 4, 5]
    assert loss.last_step == 59
    ballast.unlink()
    loss.sync()
    assert path.read_bytes() == history_bytes(map(entry, range(1, 60)))
    loss.record(entry(60))
    loss.close()
    data = path.read_bytes()
    assert data == history_bytes(map(entry, range(1, 61)))
    assert loss.prefix == history.Prefix(len(data) - 3, sha256(data[:-3]))


def test_record_heals_by_itself_once_there_is_space(tmpfs: Callable[[str], Path]) -> None:
    disk = tmpfs("64k")
    loss = LossHistory.create(disk / ".loss.json")
    ballast = fill(disk)
    failed = 0
    for step in range(1, 80):
        try:
            loss.record(entry(step))
        except OSError:
            failed += 1
    assert failed
    ballast.unlink()
    loss.record(entry(80))
    loss.close()
    assert loss.path.read_bytes() == history_bytes(map(entry, range(1, 81)))


def test_process_killed_while_the_disk_was_full_loses_no_vouched_step(
    tmpfs: Callable[[str], Path],
) -> None:
    disk = tmpfs("64k")
    path = disk / ".loss.json"
    loss = LossHistory.create(path)
    for step in range(1, 6):
        loss.record(entry(step))
    loss.sync()
    vouched = loss.prefix
    ballast = fill(disk)
    for step in range(6, 60):
        with pytest.raises(OSError) if step > 50 else contextlib.suppress(OSError):
            loss.record(entry(step))
    loss.close()  # its queue dies with it
    torn = path.read_bytes()
    ballast.unlink()
    again, cut = LossHistory.resume(path, 5, vouched.length)
    assert again.prefix == vouched
    assert 5 < again.last_step < 59
    assert cut == len(torn) - prefix_length(again.last_step)
    for step in range(6, 60):
        again.record(entry(step))
    again.close()
    assert path.read_bytes() == history_bytes(map(entry, range(1, 60)))


def test_write_cut_short_by_a_file_size_limit(tmp_path: Path) -> None:
    """RLIMIT_FSIZE gives a short write, then EFBIG: the torn end is told, then healed."""
    script = """
import resource, sys
from pathlib import Path
from andread.rundir.history import LossHistory
from tests.rundir.helpers import entry
loss = LossHistory.create(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (700, resource.RLIM_INFINITY))
failed = 0
for step in range(1, 20):
    try:
        loss.record(entry(step))
    except OSError:
        failed += 1
torn = Path(sys.argv[1]).read_bytes()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
loss.sync()
print(failed, len(torn))
"""
    path = tmp_path / ".loss.json"
    done = python(script, path)
    assert done.returncode == 0, done.stderr
    failed, torn = map(int, done.stdout.split())
    assert failed > 10 and torn == 700
    assert path.read_bytes() == history_bytes(map(entry, range(1, 20)))


def test_failed_fsync_writes_the_same_bytes_again(tmp_path: Path) -> None:
    """After a failed fsync the page cache may call itself clean: only new writes heal it."""
    script = """
import os, sys
from pathlib import Path
from andread.rundir.history import LossHistory
from tests.rundir.helpers import entry
loss = LossHistory.create(Path(sys.argv[1]))
for step in range(1, 4):
    loss.record(entry(step))
loss.sync()
for step in range(4, 7):
    loss.record(entry(step))
try:
    loss.sync()
except OSError as error:
    print(error.errno)
loss.sync()
"""
    path, trace = tmp_path / ".loss.json", tmp_path / "trace"
    options = ["-e", "trace=pwrite64,fsync", "-P", str(path)]
    options += ["-e", "inject=fsync:error=EIO:when=2"]
    done, text = traced(script, path, trace=trace, options=options)
    assert done.stdout.strip() == "5", done.stderr
    calls = CALL.findall(text)
    names = [name for name, _, _ in calls]
    assert names == ["pwrite64"] * 3 + ["fsync"] + ["pwrite64"] * 3 + ["fsync", "pwrite64", "fsync"]
    _, offset, written = calls[-2]
    assert int(offset) == prefix_length(3), "from the last good fsync on"
    assert int(offset) + int(written) == path.stat().st_size
    assert path.read_bytes() == history_bytes(map(entry, range(1, 7)))


def test_tail_of_a_dead_process_is_written_again_before_it_is_vouched_for(tmp_path: Path) -> None:
    """Its fsync may have failed and left clean pages that never reached the disk."""
    path, trace = tmp_path / ".loss.json", tmp_path / "trace"
    recorded(path, 6).close()
    script = """
import sys
from pathlib import Path
from andread.rundir.history import LossHistory
from tests.rundir.helpers import entry
loss, _ = LossHistory.resume(Path(sys.argv[1]), 2, int(sys.argv[2]))
loss.record(entry(3))
loss.sync()
loss.sync()
"""
    options = ["-e", "trace=pwrite64,fsync", "-P", str(path)]
    done, text = traced(script, path, prefix_length(2), trace=trace, options=options)
    assert done.returncode == 0, done.stderr
    calls = CALL.findall(text)
    assert [name for name, _, _ in calls] == ["pwrite64", "fsync", "fsync"]
    assert int(calls[0][1]) == prefix_length(2)
    assert int(calls[0][1]) + int(calls[0][2]) == path.stat().st_size
    assert path.read_bytes() == history_bytes(map(entry, range(1, 7)))


def test_torn_end_on_a_full_disk_is_an_os_error_and_leaves_no_descriptor(
    tmpfs: Callable[[str], Path],
) -> None:
    disk = tmpfs("64k")
    path = disk / ".loss.json"
    page = 4096
    body = history_bytes([entry(1) | {"pad": ""}])[:-3]
    padded = history_bytes([entry(1) | {"pad": "x" * (page - len(body))}])[:-3]
    assert len(padded) == page, "the closing bracket needs a page that is not there"
    path.write_bytes(padded)
    fill(disk)
    before = descriptors()
    with pytest.raises(OSError, match="No space"):
        LossHistory.resume(path, 0, 2)
    assert descriptors() == before
    assert path.read_bytes() == padded


def test_read_only_disk_says_so(
    tmpfs: Callable[[str], Path], read_only: Callable[[Path], None]
) -> None:
    disk = tmpfs("64k")
    path = disk / ".loss.json"
    recorded(path, 3).close()
    read_only(disk)
    with pytest.raises(OSError, match="Read-only"):
        LossHistory.resume(path, 0, 2)
    assert [item["step"] for item in history.read(path)] == [1, 2, 3]
    assert [item["step"] for item in history.tail(path, 2)] == [2, 3]


# ---------------------------------------------------------------- readers


def test_readers_tolerate_a_torn_end(tmp_path: Path) -> None:
    path = tmp_path / ".loss.json"
    data = history_bytes(map(entry, range(1, 4)))
    for size in range(prefix_length(2), prefix_length(3)):
        path.write_bytes(data[:size])
        assert [item["step"] for item in history.read(path)] == [1, 2]
        assert [item["step"] for item in history.tail(path, 9)] == [1, 2]
    path.write_bytes(data + bytes(5000))
    assert [item["step"] for item in history.read(path)] == [1, 2, 3]


def test_tail_gives_the_last_ones_however_long_they_are(tmp_path: Path) -> None:
    path = tmp_path / ".loss.json"
    long = {f"source-{index}": index for index in range(100)}
    entries = [entry(step) | {"pulls": long} for step in range(1, 31)]
    path.write_bytes(history_bytes(entries))
    for count in (0, 1, 2, 29, 30, 31):
        assert history.tail(path, count) == entries[30 - min(30, count) :]
    assert history.tail(tmp_path / "absent", 3) == []
    path.write_bytes(history_bytes([entry(1)]))
    assert history.tail(path, 0) == []


def test_tail_does_not_read_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / ".loss.json"
    path.write_bytes(history_bytes([entry(1)])[:-3])
    os.truncate(path, 2 << 30)
    with path.open("ab") as stream:
        stream.write(b"\n" + history_bytes(map(entry, range(7, 10)))[2:])
    script = """
import resource, sys
from pathlib import Path
from andread.rundir import history
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
print([e["step"] for e in history.tail(Path(sys.argv[1]), 2)])
"""
    done = python(script, path)
    assert done.stdout.strip() == "[8, 9]", done.stderr


def test_prefix_and_end_of_step(tmp_path: Path) -> None:
    path = tmp_path / ".loss.json"
    data = history_bytes(map(entry, range(1, 6)))
    path.write_bytes(data)
    for step in range(6):
        length = prefix_length(step)
        assert history.end_of_step(path, step) == length
        assert history.prefix_sha256(path, length) == hashlib.sha256(data[:length]).hexdigest()
    assert history.end_of_step(path, 6) is None
    assert history.prefix_sha256(path, len(data) + 1) is None
    assert history.prefix_sha256(tmp_path / "absent", 1) is None


def test_prefix_is_hashed_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK", 7)
    loss = recorded(tmp_path / ".loss.json", 5)
    assert history.prefix_sha256(loss.path, loss.prefix.length) == loss.prefix.sha256
    loss.close()
    again, _ = LossHistory.resume(loss.path, 5, loss.prefix.length)
    assert again.prefix == loss.prefix
    again.close()


def test_foreign_opening_is_never_cut(tmp_path: Path) -> None:
    """A file that does not begin as ours has no end of step 0: accepting it would cut it."""
    path = tmp_path / ".loss.json"
    foreign: list[Any] = [entry(1), entry(2)]
    path.write_text(json.dumps(foreign))
    assert history.end_of_step(path, 0) is None


def test_an_entry_recorded_during_an_fsync_is_not_taken_for_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer syncs while training records; only what was there before the fsync is safe."""
    path = tmp_path / ".loss.json"
    loss = recorded(path, 3)
    real, failing = disk.fsync, [False]

    def fsync(descriptor: int) -> None:
        real(descriptor)
        loss.record(entry(loss.step + 1))
        if failing[0]:
            raise OSError(errno.EIO, "lost")

    monkeypatch.setattr(disk, "fsync", fsync)
    loss.sync()
    failing[0] = True
    with pytest.raises(OSError, match="lost"):
        loss.sync()
    monkeypatch.setattr(disk, "fsync", real)
    with path.open("r+b") as stream:  # what the failed fsync may have left on the disk
        stream.seek(prefix_length(3))
        stream.write(bytes(path.stat().st_size - prefix_length(3)))
    loss.sync()
    assert path.read_bytes() == history_bytes(map(entry, range(1, 6)))


def test_a_prefix_is_copied_while_the_writer_goes_on(tmp_path: Path) -> None:
    loss = history.LossHistory.create(tmp_path / "a.json")
    for step in range(1, 6):
        loss.record(entry(step))
    prefix = loss.prefix
    for step in range(6, 9):
        loss.record(entry(step))
    target = tmp_path / "b.json"
    assert history.copy_prefix(tmp_path / "a.json", target, prefix.length) == prefix.sha256
    assert target.read_bytes() == history_bytes(map(entry, range(1, 6)))
    loss.record(entry(9))
    loss.close()
    assert [entry["step"] for entry in history.read(target)] == [1, 2, 3, 4, 5]
    assert target.stat().st_ino != (tmp_path / "a.json").stat().st_ino


def test_a_prefix_that_is_not_there_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(history_bytes(map(entry, range(1, 4))))
    assert history.copy_prefix(path, tmp_path / "b.json", 1 << 20) is None
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_entries_behind_a_prefix(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(history_bytes(map(entry, range(1, 8))))
    length = history.end_of_step(path, 4)
    assert length is not None
    assert [entry["step"] for entry in history.read_after(path, length, 4)] == [5, 6, 7]
    assert [entry["step"] for entry in history.read_after(path, 2, 0)] == [1, 2, 3, 4, 5, 6, 7]
