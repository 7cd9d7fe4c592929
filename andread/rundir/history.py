r"""`.loss.json`: the loss history, one entry per step, never archived, never rewritten.

    [\n
    {"step":1,"loss":…,"lr":…,"grad_norm":…,"pulls":{…},"t":…},\n
    {"step":2,…}                                    <- a checkpoint vouches up to this brace
    \n]\n                                           <- overwritten by the next append

The file is valid JSON between any two appends; an append is one write over the closing bracket.
A checkpoint vouches for a prefix: its length and SHA-256. Entries since the last good fsync stay
in memory, and after a failed write or fsync the same bytes go to the same offsets again. So does
the tail that a resume finds: the process that wrote it may have died of a failed fsync, which
leaves pages that call themselves clean and never reached the disk.

During a replay the recorded entries are witnesses: `record` compares and does not write.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from andread.rundir import disk, files
from andread.rundir.layout import REJECTED_SUFFIX

OPENING: Final = b"[\n"
SEPARATOR: Final = b",\n"
CLOSING: Final = b"\n]\n"
_MAX_TAIL: Final = 64 << 20
"""Bytes from the end that `tail` looks for entries in, at most."""
_Recorded = tuple[bytes, dict[str, Any]]


@dataclass(frozen=True)
class Prefix:
    """The part of the history that a checkpoint vouches for."""

    length: int
    sha256: str


@dataclass(frozen=True)
class Witness:
    """A replayed step beside its record: `difference` is 0.0 where they are the same bits."""

    step: int
    difference: float
    detail: str


class LossHistory:
    """The history as its one writer has it. `sync` may run in another thread beside `record`.

    `last_step` is the last recorded step, `step` the last one lived through: behind it in a
    replay, equal to it otherwise.
    """

    def __init__(self, path: Path, step: int, digest: hashlib._Hash, length: int) -> None:
        self.path = path
        self.step = step
        self._digest = digest
        self._length = length
        self._recorded: deque[_Recorded] = deque()
        self._unsynced: list[bytes] = []
        self._unsynced_from = length
        self._fault = False
        self._descriptor = -1
        self._mutex = threading.Lock()

    @classmethod
    def create(cls, path: Path, step: int = 0) -> LossHistory:
        """Begin an empty history whose first entry will be that of `step` + 1."""
        files.replace(path, OPENING + CLOSING)
        return cls._writing(path, step, hashlib.sha256(OPENING), len(OPENING))

    @classmethod
    def resume(cls, path: Path, step: int, length: int) -> tuple[LossHistory, int]:
        """Take the history up where a checkpoint of `step` vouches for `length` bytes.

        Whole entries with consecutive steps behind that become witnesses of the replay; the
        rest, torn by a crash, is cut off. Returns the history and the number of bytes cut.
        """
        with files.opened(path) as descriptor, files.stream(descriptor) as stream:
            digest = hashlib.sha256()
            for chunk in files.chunks(stream, length):
                digest.update(chunk)
            recorded = deque(_entries_after(stream, length, step))
            end = length + sum(len(data) for data, _ in recorded)
            size = disk.fstat(descriptor).st_size
            clean = (
                size == end + len(CLOSING)
                and files.read_at(descriptor, len(CLOSING), end) == CLOSING
            )
        history = cls._writing(path, step, digest, length)
        history._recorded = recorded
        history._unsynced = [data for data, _ in recorded]
        history._fault = bool(recorded)
        if not clean:
            try:
                files.write_all(history._descriptor, CLOSING, end)
                disk.ftruncate(history._descriptor, end + len(CLOSING))
                disk.fsync(history._descriptor)
            except OSError:
                history.close()
                raise
        return history, 0 if clean else max(0, size - end)

    @classmethod
    def _writing(cls, path: Path, step: int, digest: hashlib._Hash, length: int) -> LossHistory:
        history = cls(path, step, digest, length)
        history._descriptor = _open_to_write(path)
        return history

    @property
    def last_step(self) -> int:
        """Return the last recorded step."""
        return self.step + len(self._recorded)

    @property
    def replaying(self) -> bool:
        """Tell whether the next step has been recorded already."""
        return bool(self._recorded)

    @property
    def prefix(self) -> Prefix:
        """Return what a checkpoint of `step` vouches for."""
        return Prefix(self._length, self._digest.hexdigest())

    def record(self, entry: dict[str, Any]) -> Witness | None:
        """Append the entry of the next step; in a replay compare it with the recorded one.

        Returns the comparison in a replay, else None. Raises `OSError` if the append failed: the
        entry is then kept and written again by the next `record` or `sync`.
        """
        assert entry["step"] == self.step + 1, "one entry per step, in order"
        if self._recorded:
            data, recorded = self._recorded.popleft()
            self._advance(data)
            return _compare(recorded, entry)
        body = orjson.dumps(entry)
        data = body if self._length == len(OPENING) else SEPARATOR + body
        self._advance(data)
        with self._mutex:
            self._unsynced.append(data)
            if self._fault:
                self._rewrite()
            else:
                self._write(data, self._length - len(data))
        return None

    def sync(self) -> None:
        """Make every entry so far durable; `OSError` if that fails, and can be called again."""
        with self._mutex:
            if self._fault:
                self._rewrite()
            written = len(self._unsynced)
        try:
            disk.fsync(self._descriptor)
        except OSError:
            self._fault = True
            raise
        with self._mutex:  # entries recorded meanwhile may have missed this fsync
            self._unsynced_from += sum(map(len, self._unsynced[:written]))
            del self._unsynced[:written]

    @property
    def is_lost(self) -> bool:
        """Tell whether the file was removed or replaced while it is in use."""
        return not files.is_named(self._descriptor, self.path)

    def put_back(self) -> None:
        """Put the whole history under its name again, from the file still open; durable.

        What stands under the name now is set aside. Raises `OSError` if that fails.
        """
        if files.exists(self.path, follow=False):
            files.rename(self.path, self.path.with_name(self.path.name + REJECTED_SUFFIX))
        end = self._unsynced_from + sum(map(len, self._unsynced))
        with files.Staged(self.path, end + len(CLOSING)) as staged:
            for start in range(0, self._unsynced_from, files.CHUNK):
                length = min(files.CHUNK, self._unsynced_from - start)
                staged.write(files.read_at(self._descriptor, length, start))
            staged.write(b"".join(self._unsynced) + CLOSING)
            staged.commit()
        os.close(self._descriptor)
        self._descriptor = _open_to_write(self.path)
        self._unsynced.clear()
        self._unsynced_from = end
        self._fault = False

    def close(self) -> None:
        """Close the file; what is not synced is left to the operating system."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _advance(self, data: bytes) -> None:
        self.step += 1
        self._digest.update(data)
        self._length += len(data)

    def _rewrite(self) -> None:
        """Write everything since the last good fsync again, to the same offsets."""
        self._write(b"".join(self._unsynced), self._unsynced_from)
        self._fault = False

    def _write(self, data: bytes, offset: int) -> None:
        try:
            files.write_all(self._descriptor, data + CLOSING, offset)
        except OSError:
            self._fault = True
            raise


def _open_to_write(path: Path) -> int:
    return files.open_regular(path, os.O_RDWR)


def _entry(body: bytes) -> dict[str, Any] | None:
    """Return the entry that `body` holds, None if it is torn."""
    try:
        entry = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return entry if isinstance(entry, dict) else None


def _compare(recorded: dict[str, Any], replayed: dict[str, Any]) -> Witness:
    """Compare the loss and the pulls of a replayed step with what was recorded."""
    step, old, new = replayed["step"], recorded.get("loss"), replayed["loss"]
    if recorded.get("pulls") != replayed["pulls"]:
        detail = f"pulls {recorded.get('pulls')} became {replayed['pulls']}"
        return Witness(step, float("inf"), detail)
    if old == new:
        return Witness(step, 0.0, "")
    detail = f"loss {old} became {new}"
    both = isinstance(old, (int, float)) and isinstance(new, (int, float))
    return Witness(step, abs(old - new) if both else float("inf"), detail)


def _entries_after(stream: BinaryIO, length: int, step: int) -> Iterator[_Recorded]:
    """Yield the whole entries that follow a prefix of `length` bytes, up to the first failure."""
    separator = b"" if length == len(OPENING) else stream.readline(len(SEPARATOR) + 1)
    if separator not in (b"", SEPARATOR):
        return
    for line in files.lines(stream):
        body = line.rstrip(SEPARATOR)
        entry = _entry(body)
        step += 1
        if entry is None or entry.get("step") != step:
            return
        yield separator + body, entry
        separator = SEPARATOR
        if line != body + SEPARATOR:  # the last one, or torn
            return


def prefix_sha256(path: Path, length: int) -> str | None:
    """Return the SHA-256 of the first `length` bytes, None if the file is shorter or missing."""
    digest = hashlib.sha256()
    try:
        with files.opened(path) as descriptor, files.stream(descriptor) as stream:
            for chunk in files.chunks(stream, length):
                digest.update(chunk)
    except (FileNotFoundError, EOFError):
        return None
    return digest.hexdigest()


def copy_prefix(path: Path, target: Path, length: int) -> str | None:
    """Copy the first `length` bytes to `target`, closed and durable; return their SHA-256.

    A writer may go on with `path` meanwhile. None, and no `target`, if the file is shorter.
    """
    digest = hashlib.sha256()
    with (
        files.opened(path) as descriptor,
        files.stream(descriptor) as stream,
        files.Staged(target, length + len(CLOSING)) as staged,
    ):
        try:
            for chunk in files.chunks(stream, length):
                digest.update(chunk)
                staged.write(chunk)
        except EOFError:
            return None
        staged.write(CLOSING)
        staged.commit()
    return digest.hexdigest()


def end_of_step(path: Path, step: int) -> int | None:
    """Return the offset behind the entry of `step`, None if there is no such entry."""
    offset = 0
    with files.opened(path) as descriptor, files.stream(descriptor) as stream:
        if step == 0:
            return len(OPENING) if stream.read(len(OPENING)) == OPENING else None
        for line in files.lines(stream):
            body = line.rstrip(SEPARATOR)
            entry = _entry(body)
            if entry is not None and entry.get("step") == step:
                return offset + len(body)
            offset += len(line)
    return None


def entry_after(path: Path, length: int, step: int) -> dict[str, Any] | None:
    """Return the entry that follows a prefix of `length` bytes up to `step`, None if none does."""
    return next(read_after(path, length, step), None)


def ends_at(path: Path, length: int) -> bool:
    """Tell whether nothing but the closing bracket follows a prefix of `length` bytes."""
    with files.opened(path) as descriptor:
        size = disk.fstat(descriptor).st_size
        return (
            size == length + len(CLOSING)
            and files.read_at(descriptor, len(CLOSING), length) == CLOSING
        )


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries from the first on, tolerating a torn end. For readers."""
    with files.opened(path) as descriptor, files.stream(descriptor) as stream:
        for line in files.lines(stream):
            if line not in (OPENING, CLOSING[1:]) and (entry := _entry(line.rstrip(b",\n"))):
                yield entry


def read_after(path: Path, length: int, step: int) -> Iterator[dict[str, Any]]:
    """Yield the whole, consecutive entries behind a prefix of `length` bytes up to `step`."""
    with files.opened(path) as descriptor, files.stream(descriptor, length) as stream:
        for _, entry in _entries_after(stream, length, step):
            yield entry


def tail(path: Path, count: int) -> list[dict[str, Any]]:
    """Return the last `count` entries, or those that the end of the file holds. For readers."""
    try:
        with files.opened(path) as descriptor:
            size = disk.fstat(descriptor).st_size
            span = 256 * (count + 2)
            while True:
                start = max(0, size - span)
                lines = files.read_at(descriptor, size - start, start).split(b"\n")
                entries = [e for line in lines if (e := _entry(line.rstrip(b","))) and "step" in e]
                if len(entries) >= count or start == 0 or span >= _MAX_TAIL:
                    return entries[max(0, len(entries) - count) :]
                span *= 4
    except FileNotFoundError:
        return []


def last_step(path: Path) -> int:
    """Return the step of the last entry, 0 if there is none. For readers."""
    return next((int(entry["step"]) for entry in tail(path, 1)), 0)
