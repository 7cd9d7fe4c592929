"""Whole, durable, or not at all: on disks that are full, read-only, or fail in the middle."""

from __future__ import annotations

import errno
import fcntl
import io
import mmap
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from andread.rundir import disk, files
from andread.rundir.errors import DataError
from tests.rundir.helpers import (
    STRANGERS,
    descriptors,
    end,
    fill,
    put_stranger,
    python,
    spawn,
    temporaries,
    traced,
)

CALL = re.compile(r"^\d+ +(\w+)\(", re.M)


def test_replace_puts_the_bytes_there_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x"
    held = descriptors()
    for data in (b"", b"one", b"two" * 100_000, b"3"):
        files.replace(path, data)
        assert path.read_bytes() == data
    assert [item.name for item in tmp_path.iterdir()] == ["x"]
    assert path.stat().st_mode & 0o777 == 0o640 & ~current_umask()
    assert descriptors() == held


def current_umask() -> int:
    text = Path("/proc/self/status").read_text()
    return int(re.search(r"^Umask:\s+(\d+)", text, re.M)[1], 8)  # type: ignore[index]


def test_replace_in_the_order_that_makes_it_durable(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from andread.rundir import disk, files
files.replace(Path(sys.argv[1]), b"data")
"""
    options = ["-e", "trace=pwrite64,fsync,fdatasync,rename,renameat,renameat2"]
    done, text = traced(script, tmp_path / "x", trace=tmp_path / "trace", options=options)
    assert done.returncode == 0, done.stderr
    ours = [line for line in text.splitlines() if str(tmp_path) in line]
    assert CALL.findall("\n".join(ours)) == ["pwrite64", "fsync", "rename", "fsync"]
    assert ".tmp-" in ours[1], "the file first"
    assert f"<{tmp_path}>" in ours[3], "then the directory"


@pytest.mark.parametrize("call", ["pwrite64", "ftruncate", "fsync", "rename"])
def test_failure_of_any_call_leaves_the_old_file_and_no_other(tmp_path: Path, call: str) -> None:
    path = tmp_path / "run" / "x"
    path.parent.mkdir()
    path.write_bytes(b"old")
    script = """
import sys
from pathlib import Path
from andread.rundir import disk, files
try:
    files.replace(Path(sys.argv[1]), b"new")
except OSError as error:
    print(error.errno)
"""
    options = ["-e", f"trace={call},fsync", "-e", f"inject={call}:error=EIO:when=1"]
    done, text = traced(script, path, trace=tmp_path / "trace", options=options)
    assert done.stdout.strip() == str(errno.EIO), done.stderr
    assert path.read_bytes() == b"old"
    assert [item.name for item in path.parent.iterdir()] == ["x"]
    if call == "fsync":
        assert len(CALL.findall(text)) == 1, "a failed fsync is never tried again"


def test_temporary_file_that_will_not_go_does_not_hide_the_error(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from andread.rundir import disk, files
try:
    files.replace(Path(sys.argv[1]), b"new")
except OSError as error:
    print(error.errno)
"""
    options = ["-e", "trace=fsync,unlink", "-e", "inject=fsync:error=EIO:when=1"]
    options += ["-e", "inject=unlink:error=EROFS"]
    done, _ = traced(script, tmp_path / "run", trace=tmp_path / "trace", options=options)
    assert done.stdout.strip() == str(errno.EIO), done.stderr
    assert len(files.sweep(tmp_path)) == 1


def test_failed_directory_fsync_is_told(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from andread.rundir import disk, files
files.replace(Path(sys.argv[1]), b"new")
"""
    options = ["-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=2"]
    done, _ = traced(script, tmp_path / "x", trace=tmp_path / "trace", options=options)
    assert "OSError: [Errno 5]" in done.stderr
    assert (tmp_path / "x").read_bytes() == b"new", "complete, but not known to be durable"


def test_full_disk_keeps_the_old_file(tmpfs: Callable[[str], Path]) -> None:
    disk = tmpfs("64k")
    path = disk / "x"
    files.replace(path, b"old")
    ballast = fill(disk)
    with pytest.raises(OSError, match="No space"):
        files.replace(path, b"n" * 5000)
    assert path.read_bytes() == b"old"
    assert temporaries(disk) == []
    ballast.unlink()
    files.replace(path, b"n" * 5000)
    assert path.read_bytes() == b"n" * 5000


def test_full_disk_is_noticed_before_the_first_byte(tmpfs: Callable[[str], Path]) -> None:
    disk = tmpfs("64k")
    held = descriptors()
    with pytest.raises(OSError, match="No space"):
        files.Staged(disk / "x", 1 << 20)
    assert list(disk.iterdir()) == [], "a failed preallocation leaves its part of the file behind"
    assert os.statvfs(disk).f_bfree * os.statvfs(disk).f_frsize == 64 << 10
    assert descriptors() == held


def test_preallocated_space_is_ours(tmpfs: Callable[[str], Path]) -> None:
    disk = tmpfs("64k")
    with files.Staged(disk / "x", 32 << 10) as staged:
        fill(disk)
        staged.write(b"1" * (32 << 10))
        staged.commit()
    assert (disk / "x").read_bytes() == b"1" * (32 << 10)


def test_file_is_as_long_as_what_was_written(tmp_path: Path) -> None:
    with files.Staged(tmp_path / "x", 10_000) as staged:
        staged.write(b"12")
        staged.write(memoryview(bytearray(b"345")))
        staged.commit()
    assert (tmp_path / "x").read_bytes() == b"12345"


def test_staged_file_that_is_not_committed_is_gone(tmp_path: Path) -> None:
    with files.Staged(tmp_path / "x", 10) as staged:
        staged.write(b"12")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyError), files.Staged(tmp_path / "x"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_read_only_disk(tmpfs: Callable[[str], Path], read_only: Callable[[Path], None]) -> None:
    disk = tmpfs("64k")
    files.replace(disk / "x", b"old")
    read_only(disk)
    for act in (
        lambda: files.replace(disk / "x", b"new"),
        lambda: files.append_line(disk / "x", b"new"),
        lambda: files.make_directory(disk / "d"),
        lambda: files.remove(disk / "x"),
        lambda: files.rename(disk / "x", disk / "y"),
    ):
        with pytest.raises(OSError, match="Read-only"):
            act()
    assert files.read_bytes(disk / "x", 9) == b"old"


def test_file_size_limit_cuts_a_write_short(tmp_path: Path) -> None:
    script = """
import resource, sys
from pathlib import Path
from andread.rundir import disk, files
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for size in (0, 5000):
    try:
        with files.Staged(Path(sys.argv[1]), size) as staged:
            staged.write(b"x" * 5000)
            staged.commit()
    except OSError as error:
        print(error.errno)
"""
    done = python(script, tmp_path / "x")
    assert done.stdout.split() == [str(errno.EFBIG)] * 2, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_writes_go_on_where_a_short_one_ended(tmp_path: Path) -> None:
    """A pipe-sized kernel would do it too; strace makes the second write tell of 3 bytes only."""
    script = """
import os, sys
from andread.rundir import disk, files
files.CHUNK = 7
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
files.write_all(descriptor, b"0123456789abcdefghij", 5)
"""
    options = ["-e", "trace=pwrite64", "-e", "inject=pwrite64:retval=3:when=2"]
    done, text = traced(script, tmp_path / "x", trace=tmp_path / "trace", options=options)
    assert done.returncode == 0, done.stderr
    offsets = re.findall(r", (\d+), (\d+)\)? += (\d+)", text)
    assert offsets == [("7", "5", "7"), ("7", "12", "3"), ("7", "15", "7"), ("3", "22", "3")]


def test_write_without_progress_is_an_error(tmp_path: Path) -> None:
    script = """
import os, sys
from andread.rundir import disk, files
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
files.write_all(descriptor, b"0123", 0)
"""
    options = ["-e", "trace=pwrite64", "-e", "inject=pwrite64:retval=0"]
    done, _ = traced(script, tmp_path / "x", trace=tmp_path / "trace", options=options)
    assert "no progress" in done.stderr


def test_killed_writer_leaves_a_temporary_file_that_is_swept(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from andread.rundir import disk, files
staged = files.Staged(Path(sys.argv[1]), 100)
staged.write(b"half")
print("ready", flush=True)
input()
"""
    (tmp_path / "x").write_bytes(b"old")
    process = spawn(script, tmp_path / "x")
    end(process)
    left = temporaries(tmp_path)
    assert len(left) == 1
    assert files.sweep(tmp_path) == left
    assert [item.name for item in tmp_path.iterdir()] == ["x"]
    assert files.sweep(tmp_path) == []


def test_sweep_passes_over_directories(tmp_path: Path) -> None:
    (tmp_path / "mine.tmp-old").mkdir()
    (tmp_path / "x.tmp-0a1b2c3d").symlink_to("nowhere")
    assert files.sweep(tmp_path) == ["x.tmp-0a1b2c3d"]
    assert (tmp_path / "mine.tmp-old").is_dir()


# ---------------------------------------------------------------- lines


def test_lines_are_appended_each_in_one_write(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from andread.rundir import disk, files
files.append_line(Path(sys.argv[1]), b"first")
files.append_line(Path(sys.argv[1]), b"second")
"""
    options = ["-e", "trace=write,pwrite64", "-P", str(tmp_path / "x")]
    done, text = traced(script, tmp_path / "x", trace=tmp_path / "trace", options=options)
    assert done.returncode == 0, done.stderr
    assert CALL.findall(text) == ["write", "write"]
    assert (tmp_path / "x").read_bytes() == b"first\nsecond\n"
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640 & ~current_umask()


def test_line_after_a_torn_one_starts_anew(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"whole\nto")
    files.append_line(tmp_path / "x", b"next")
    assert (tmp_path / "x").read_bytes() == b"whole\nto\nnext\n"


def test_line_that_does_not_fit_is_told_and_the_next_one_is_whole(
    tmpfs: Callable[[str], Path],
) -> None:
    disk = tmpfs("64k")
    path = disk / "x"
    files.append_line(path, b"a" * 4000)
    ballast = fill(disk)
    with pytest.raises(OSError, match="No space"):
        files.append_line(path, b"b" * 4000)
    ballast.unlink()
    files.append_line(path, b"c")
    lines = path.read_bytes().split(b"\n")
    assert lines[0] == b"a" * 4000
    assert lines[-2:] == [b"c", b""]


@pytest.mark.parametrize("kind", STRANGERS)
def test_no_line_goes_into_what_is_no_regular_file(tmp_path: Path, kind: str) -> None:
    put_stranger(tmp_path / "x", kind)
    held = descriptors()
    with pytest.raises(DataError, match="not a regular file"):
        files.append_line(tmp_path / "x", b"lost")
    assert descriptors() == held


def test_writers_at_once_lose_no_line(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from andread.rundir import disk, files
print("ready", flush=True)
input()
for index in range(300):
    files.append_line(Path(sys.argv[1]), f"{sys.argv[2]} {index} ".encode() + b"x" * 200)
"""
    processes = [spawn(script, tmp_path / "x", name) for name in "abc"]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
    # one that looked in the middle of another's write may have begun with an empty line
    lines = [line for line in (tmp_path / "x").read_text().splitlines() if line]
    assert len(lines) == 900
    for name in "abc":
        assert [int(x.split()[1]) for x in lines if x.startswith(name)] == list(range(300))


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("kind", STRANGERS)
def test_nothing_but_a_regular_file_is_read(tmp_path: Path, kind: str) -> None:
    put_stranger(tmp_path / "x", kind)
    held = descriptors()
    with pytest.raises(DataError, match="not a regular file"):
        files.read_bytes(tmp_path / "x", 100)
    assert descriptors() == held


def test_what_is_not_there_is_the_callers_to_judge(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.read_bytes(tmp_path / "x", 100)
    with pytest.raises(FileNotFoundError):
        files.read_json(tmp_path / "x")


def test_limit_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert files.read_bytes(tmp_path / "x", 5) == b"12345"
    with pytest.raises(DataError, match="5 bytes, more than 4"):
        files.read_bytes(tmp_path / "x", 4)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b'{"a":1}x', b"\xff", b"[" * 100_000, b'{"a":' * 50_000, b"\0" * 4096, b"NaN"],
    ids=["empty", "torn", "more", "no-utf-8", "deep-lists", "deep-tables", "zeros", "nan"],
)
def test_damaged_json_is_a_data_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(DataError, match="not valid JSON"):
        files.read_json(tmp_path / "x")


def test_json_goes_round(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, "é"], "b": {}}
    files.replace_json(tmp_path / "x", value)
    assert files.read_json(tmp_path / "x") == value
    assert (tmp_path / "x").read_bytes().endswith(b"}\n")


def test_read_into_stops_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"0123456789")
    target = bytearray(8)
    with files.opened(tmp_path / "x") as descriptor:
        assert files.read_into(descriptor, memoryview(target), 4) == 6
        assert target == b"456789\0\0"
        assert files.read_into(descriptor, memoryview(target), 10) == 0
        assert files.read_into(descriptor, memoryview(target), 1) == 8
    assert target == b"12345678"


def test_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK", 4)
    assert list(files.chunks(io.BytesIO(b"0123456789"), 9)) == [b"0123", b"4567", b"8"]
    assert list(files.chunks(io.BytesIO(b""), 0)) == []
    with pytest.raises(EOFError, match="2 bytes early"):
        list(files.chunks(io.BytesIO(b"0123456789"), 12))


def test_directories_and_names(tmp_path: Path) -> None:
    files.make_directory(tmp_path / "d")
    files.make_directory(tmp_path / "d")
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o750 & ~current_umask()
    (tmp_path / "d" / "x").touch()
    files.rename(tmp_path / "d" / "x", tmp_path / "d" / "y")
    files.remove(tmp_path / "d" / "x")
    files.remove(tmp_path / "d" / "y")
    assert list((tmp_path / "d").iterdir()) == []


# ---------------------------------------------------------------- past the page cache


def pattern(size: int) -> memoryview:
    """Return page-aligned memory whose bytes tell where they belong."""
    block = mmap.mmap(-1, size)
    block[:] = bytes(index * 7 % 251 for index in range(size))
    return memoryview(block)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 3 * 4096 + 5])
@pytest.mark.parametrize("shift", [0, 1])
def test_a_whole_file_is_written_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, shift: int
) -> None:
    """Whole pages go past the cache where they can; whatever can not, the file is the same."""
    monkeypatch.setattr(files, "CHUNK", 8192)
    real, direct = disk.pwrite, []

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            direct.append((offset, len(data)))
        return real(descriptor, data, offset)

    monkeypatch.setattr(disk, "pwrite", pwrite)
    data = pattern(size + shift + 1)[shift : shift + size]
    beats: list[int] = []
    with files.Staged(tmp_path / "x", size) as staged:
        staged.write_direct(data, lambda: beats.append(1))
        staged.commit()
    assert (tmp_path / "x").read_bytes() == bytes(data)
    assert bool(direct) == (size >= 4096), "the file system of this test takes direct I/O"
    assert all(offset % 4096 == length % 4096 == 0 for offset, length in direct)
    assert bool(beats) == bool(size)


def test_short_direct_writes_are_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = disk.pwrite
    lengths = iter([4096, 100, 5000])

    def short(descriptor: int, data: memoryview, offset: int) -> int:
        data = data[: next(lengths, None)]
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT and len(data) % 4096:
            files._set_direct(descriptor, False)
            try:
                return real(descriptor, data, offset)
            finally:
                files._set_direct(descriptor, True)
        return real(descriptor, data, offset)

    monkeypatch.setattr(disk, "pwrite", short)
    data = pattern(5 * 4096 + 3)
    with files.Staged(tmp_path / "x", len(data)) as staged:
        staged.write_direct(data)
        staged.commit()
    assert (tmp_path / "x").read_bytes() == bytes(data)


def test_a_file_system_without_direct_writes(tmpfs: Callable[[str], Path]) -> None:
    place = tmpfs("64k")
    data = pattern(3 * 4096 + 5)
    with files.Staged(place / "x", len(data)) as staged:
        staged.write_direct(data)
        staged.commit()
    assert (place / "x").read_bytes() == bytes(data)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list that grows by the path of each file or directory that is synced."""
    found: list[str] = []
    real = disk.fsync

    def noted(descriptor: int) -> None:
        found.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(disk, "fsync", noted)
    return found


def test_what_is_gone_or_there_already_is_made_durably_so(
    tmp_path: Path, synced: list[str]
) -> None:
    """Another process may have removed or made it, and died before it could sync."""
    files.remove(tmp_path / "gone")
    (tmp_path / "d").mkdir()
    files.make_directory(tmp_path / "d")
    assert synced == [str(tmp_path)] * 2
    files.remove(tmp_path / "nowhere" / "gone")
    assert len(synced) == 2


def test_a_tree_goes_with_all_that_is_in_it(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "x").write_bytes(b"x")
    (tmp_path / "kept").mkdir()
    (tmp_path / "d" / "e" / "link").symlink_to(tmp_path / "kept")
    files.remove_tree(tmp_path / "d")
    assert [item.name for item in tmp_path.iterdir()] == ["kept"]
    assert synced[-1] == str(tmp_path)


def test_trouble_with_looking_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"12")
    (tmp_path / "loop").symlink_to("loop")
    assert files.exists(tmp_path / "x") and files.size(tmp_path / "x") == 2
    assert not files.exists(tmp_path / "loop") and files.exists(tmp_path / "loop", follow=False)
    assert files.size(tmp_path / "x" / "y") is None and files.names(tmp_path / "x") == []

    def broken(path: Path) -> os.stat_result:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk, "stat", broken)
    for look in (files.exists, files.is_directory, files.size):
        with pytest.raises(OSError, match="Input/output"):
            look(tmp_path / "x")


def test_a_short_read_is_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"0123456789")
    real = disk.preadv
    monkeypatch.setattr(disk, "preadv", lambda d, b, o: real(d, [memoryview(b[0])[:3]], o))
    with files.opened(tmp_path / "x") as descriptor:
        assert files.read_at(descriptor, 8, 1) == b"12345678"
        assert files.read_at(descriptor, 8, 5) == b"56789"
        with files.stream(descriptor, 2) as stream:
            assert stream.read() == b"23456789"


def test_a_file_without_lines_is_read_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"one\n" + bytes(3 << 20) + b"\ntwo")
    with files.opened(tmp_path / "x") as descriptor, files.stream(descriptor) as stream:
        lines = list(files.lines(stream))
    assert lines[0] == b"one\n" and lines[-1] == b"two"
    assert max(map(len, lines)) == files.MAX_LINE


def test_a_directory_that_many_make_at_once_is_there_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes it between any look and the making: no error, whoever was first."""
    real = disk.mkdir

    def beaten(path: Path, mode: int) -> None:
        real(path, mode)
        real(path, mode)

    monkeypatch.setattr(disk, "mkdir", beaten)
    files.make_directory(tmp_path / "d")
    assert (tmp_path / "d").is_dir()
    with pytest.raises(FileExistsError):
        files.make_directory(tmp_path / "d", exists_ok=False)
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(FileExistsError):
        files.make_directory(tmp_path / "f")
