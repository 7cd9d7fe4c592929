"""The only way to write in a run directory: whole, durable, or not at all.

Every other module asks this one to write, so that each operation can be made to fail in one
place. Two promises:

- `replace` and `Staged.commit` leave a final name either as it was or complete and durable:
  temporary file, fsync, rename, directory fsync;
- a failed write or fsync is never retried on the same file: the temporary file is discarded, for
  the kernel may call a second fsync of it a success with the data gone.

Reading and appending refuse what is not a regular file: a FIFO or a device cannot hang a start or
swallow an event.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import orjson

from andread.rundir import disk
from andread.rundir.errors import DataError
from andread.rundir.layout import TEMPORARY_INFIX

CHUNK: Final = 8 << 20
"""Bytes a write call: 64 KiB chunks were four times slower."""

FILE_MODE: Final = 0o640
DIRECTORY_MODE: Final = 0o750

_BUFFER: Final = 1 << 16

_PAGE: Final = 4096
"""Direct I/O wants memory, offset and length in multiples of it, everywhere."""

_FICLONE: Final = 0x40049409  # _IOW(0x94, 9, int)

MAX_LINE: Final = 1 << 20
"""Bytes of a line, at most: a file of zeros is no line to be held in memory."""

UNLIMITED: Final = 1 << 40
"""For `read_bytes`: whatever its size."""


def write_all(descriptor: int, data: memoryview | bytes, offset: int) -> None:
    """Write all of `data` at `offset`, however short the single writes turn out."""
    view = memoryview(data).cast("B")
    while view:
        written = disk.pwrite(descriptor, view[:CHUNK], offset)
        if written == 0:
            raise OSError(errno.EIO, "a write made no progress")
        offset += written
        view = view[written:]


def read_into(descriptor: int, target: memoryview, offset: int) -> int:
    """Fill `target` from `offset` on; return the bytes read, fewer only at the end of the file."""
    done = 0
    while done < len(target):
        count = disk.preadv(descriptor, [target[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """Return `length` bytes from `offset` on, fewer only at the end of the file.

    One pread may give fewer for reasons of its own (network file systems, FUSE): that is no end.
    """
    data = bytearray(length)
    return bytes(data[: read_into(descriptor, memoryview(data), offset)])


def is_named(descriptor: int, path: Path) -> bool:
    """Tell whether `path` still names the file that is open as `descriptor`."""
    try:
        return os.path.samestat(disk.fstat(descriptor), disk.lstat(path))
    except FileNotFoundError:
        return False


def exists(path: Path, follow: bool = True) -> bool:
    """Tell whether there is something under the name `path`; trouble with looking is raised.

    Without `follow` a symbolic link that leads nowhere is something too.
    """
    return _status(path, follow) is not None


def is_directory(path: Path, follow: bool = True) -> bool:
    """Tell whether `path` is a directory; trouble with looking is raised."""
    status = _status(path, follow)
    return status is not None and stat.S_ISDIR(status.st_mode)


def size(path: Path) -> int | None:
    """Return the size of what is under the name `path`, None if nothing is; trouble is raised."""
    status = _status(path, follow=True)
    return None if status is None else status.st_size


def _status(path: Path, follow: bool) -> os.stat_result | None:
    """Return what the file system says of `path`; unlike `Path.exists`, no error is a no."""
    try:
        return disk.stat(path) if follow else disk.lstat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def names(directory: Path) -> list[str]:
    """Return the names in `directory` in order, none if it is no directory."""
    try:
        return sorted(disk.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def sync_directory(path: Path) -> None:
    """Make the names in the directory `path` durable."""
    descriptor = disk.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        disk.fsync(descriptor)
    finally:
        os.close(descriptor)


class Staged:
    """A file on its way to a final name: preallocated, written, then committed or discarded.

    With `size` in bytes the space is taken beforehand, so that a full disk is noticed first.
    """

    def __init__(self, final: Path, size: int = 0) -> None:
        self.final = final
        self.path = final.with_name(f"{final.name}{TEMPORARY_INFIX}{secrets.token_hex(4)}")
        self._offset = 0
        self._descriptor = disk.open(
            self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE
        )
        try:
            if size:
                _preallocate(self._descriptor, size)
        except BaseException:
            self.discard()
            raise

    def write(self, data: memoryview | bytes) -> None:
        """Append `data`."""
        write_all(self._descriptor, data, self._offset)
        self._offset += memoryview(data).nbytes

    def clone(self, descriptor: int) -> None:
        """Become a reflink of the open file `descriptor`; `OSError` where that cannot be."""
        fcntl.ioctl(self._descriptor, _FICLONE, descriptor)
        self._offset = disk.fstat(descriptor).st_size

    def write_direct(self, data: memoryview, beat: Callable[[], None] = lambda: None) -> None:
        """Write `data` as the whole file, past the page cache where that can be done.

        Its whole pages go by direct I/O if the file system takes it and `data` is page-aligned,
        so that a checkpoint neither floods the cache nor slows the step that runs beside it; the
        rest goes the usual way. `beat` is called after each chunk.
        """
        direct = len(data) // _PAGE * _PAGE
        if direct and _set_direct(self._descriptor, True):
            try:
                while self._offset < direct:
                    chunk = data[self._offset : min(direct, self._offset + CHUNK)]
                    if not (written := disk.pwrite(self._descriptor, chunk, self._offset)):
                        break
                    self._offset += written
                    beat()
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            _set_direct(self._descriptor, False)
        for start in range(self._offset, len(data), CHUNK):
            self.write(data[start : start + CHUNK])
            beat()

    def commit(self) -> None:
        """fsync, rename to the final name, fsync the directory; discard on any failure."""
        try:
            disk.ftruncate(self._descriptor, self._offset)
            disk.fsync(self._descriptor)
            disk.rename(self.path, self.final)
        except BaseException:
            self.discard()
            raise
        os.close(self._descriptor)
        self._descriptor = -1
        sync_directory(self.final.parent)

    def discard(self) -> None:
        """Drop the temporary file; one that will not go is left to `sweep`."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        with contextlib.suppress(OSError):  # never to hide the error that led here
            disk.unlink(self.path)

    def __enter__(self) -> Staged:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            self.discard()


def _set_direct(descriptor: int, direct: bool) -> bool:
    """Turn direct I/O on or off; tell whether the file system agreed."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    flags = flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    except OSError:
        return False
    return True


def _preallocate(descriptor: int, size: int) -> None:
    """Take `size` bytes of space now, where the file system can."""
    try:
        disk.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise


def replace(path: Path, data: bytes) -> None:
    """Put `data` under the name `path`, atomically and durably."""
    with Staged(path) as staged:
        staged.write(data)
        staged.commit()


def replace_json(path: Path, value: Any) -> None:
    """Put `value` as indented JSON under the name `path`, atomically and durably."""
    replace(path, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def append_line(path: Path, line: bytes) -> None:
    """Append `line` (without newline) to `path` in one write, starting on a line of its own."""
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_APPEND) as descriptor:
        end = disk.fstat(descriptor).st_size
        torn = end > 0 and disk.pread(descriptor, 1, end - 1) != b"\n"
        data = (b"\n" if torn else b"") + line + b"\n"
        if disk.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def make_directory(path: Path, exists_ok: bool = True) -> None:
    """Make the directory `path`, durably; with `exists_ok` it may be there already."""
    try:
        disk.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:  # asked for afterwards: another process may make it at this moment
        if not (exists_ok and is_directory(path)):
            raise
    sync_directory(path.parent)  # one that is there may be of a process that died before this


def rename(path: Path, target: Path) -> None:
    """Rename `path` to `target` in the same directory, durably."""
    disk.rename(path, target)
    sync_directory(target.parent)


def remove(path: Path) -> None:
    """Remove `path` durably; it may be gone already."""
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(path)
    with contextlib.suppress(FileNotFoundError):  # what is gone may not be durably so
        sync_directory(path.parent)


def remove_tree(path: Path) -> None:
    """Remove the directory `path` with all that is in it, durably."""
    for name in disk.listdir(path):
        entry = path / name
        if is_directory(entry, follow=False):
            remove_tree(entry)
        else:
            disk.unlink(entry)
    disk.rmdir(path)
    sync_directory(path.parent)


def sweep(directory: Path) -> list[str]:
    """Remove temporary files that a dead writer left in `directory`; return their names."""
    left = [
        name
        for name in disk.listdir(directory)
        if TEMPORARY_INFIX in name and not is_directory(directory / name, follow=False)
    ]
    for name in left:
        disk.unlink(directory / name)
    return left


class _Reading(io.RawIOBase):
    """An open file as a stream of its own position; closing it leaves the descriptor open."""

    def __init__(self, descriptor: int, offset: int) -> None:
        self._descriptor = descriptor
        self._offset = offset

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        count = disk.preadv(self._descriptor, [target], self._offset)
        self._offset += count
        return count


def stream(descriptor: int, offset: int = 0) -> BinaryIO:
    """Return a stream that reads the file open as `descriptor` from `offset` on."""
    return cast(BinaryIO, io.BufferedReader(_Reading(descriptor, offset), _BUFFER))


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of `stream` line by line; of one too long to be ours, its pieces."""
    return iter(lambda: stream.readline(MAX_LINE), b"")


def chunks(stream: BinaryIO, length: int) -> Iterator[bytes]:
    """Yield the next `length` bytes of `stream` in pieces; `EOFError` if it ends before."""
    while length:
        chunk = stream.read(min(length, CHUNK))
        if not chunk:
            raise EOFError(f"the file ends {length} bytes early")
        length -= len(chunk)
        yield chunk


def open_regular(path: Path, flags: int) -> int:
    """Open the regular file `path`, never blocking; raise `DataError` for anything else."""
    try:
        flags |= os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = disk.open(path, flags, FILE_MODE)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _not_regular(path) from None
        raise
    if not stat.S_ISREG(disk.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path)
    return descriptor


@contextlib.contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Hold the regular file `path` open; raise `DataError` for anything else."""
    descriptor = open_regular(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _not_regular(path: Path) -> DataError:
    return DataError(f"{path} is not a regular file", "replace it by the file it stands for")


def read_bytes(path: Path, limit: int) -> bytes:
    """Read the regular file `path` whole; `DataError` if it is larger than `limit` bytes."""
    with opened(path) as descriptor:
        size = disk.fstat(descriptor).st_size
        if size > limit:
            raise DataError(f"{path} has {size:,} bytes, more than {limit:,}", "it is not ours")
        pieces: list[bytes] = []
        offset = 0
        while piece := disk.pread(descriptor, CHUNK, offset):
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)


def read_json(path: Path, limit: int = 64 << 20) -> Any:
    """Read the JSON file `path`; `DataError` if it is damaged, `OSError` if it cannot be read."""
    data = read_bytes(path, limit)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise DataError(f"{path} is not valid JSON: {error}", "it is damaged") from None
