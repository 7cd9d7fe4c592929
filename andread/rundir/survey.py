"""A strict reading of the whole loss history, for those who prove it: `.loss.json` from end to end.

Where `history.read` tolerates, this one tells. It goes through the file once, whatever its size,
and hashes the prefixes that checkpoints vouch for on the way.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import orjson

from andread.rundir import files
from andread.rundir.history import CLOSING, OPENING, SEPARATOR

_MAX_LINE: Final = 1 << 20
_MAX_FAULTS: Final = 100
_BRACKET: Final = CLOSING[1:]


@dataclass(frozen=True)
class Fault:
    """Something in the history that is not as it was written."""

    offset: int
    """Byte at which the line begins."""
    kind: Literal["torn", "order", "content"]
    """Bytes that are no entry; a step that does not follow the one before; an impossible entry."""
    what: str


@dataclass
class Survey:
    """What the whole file says."""

    entries: int = 0
    first: int = 0
    """Step of the first entry; 0 if there is none."""
    last: int = 0
    """The highest step."""
    size: int = 0
    faults: list[Fault] = field(default_factory=list)
    digests: dict[int, str] = field(default_factory=dict)
    """SHA-256 of the first so many bytes, for the lengths asked for that the file has."""
    ends: dict[int, int] = field(default_factory=dict)
    """For the steps asked for: the offset behind the entry's brace."""

    def blame(self, offset: int, kind: Literal["torn", "order", "content"], what: str) -> None:
        """Record a fault, up to a limit."""
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append(Fault(offset, kind, what))


def survey(path: Path, lengths: Collection[int] = (), steps: Collection[int] = ()) -> Survey:
    """Read the history at `path` whole; raises `OSError`, and `DataError` for no regular file."""
    with files.opened(path) as descriptor, files.stream(descriptor) as stream:
        return _read(stream, sorted({length for length in lengths if length > 0}), set(steps))


def _read(stream: BinaryIO, lengths: list[int], steps: set[int]) -> Survey:
    found, prefixes = Survey(), _Prefixes(lengths)
    closed, comma = False, True
    previous: int | None = None
    for number in itertools.count():
        line, offset = stream.readline(_MAX_LINE), found.size
        if not line:
            break
        prefixes.take(line)
        found.size += len(line)
        if number == 0 and line == OPENING:
            continue
        if number == 1 and line == CLOSING[:1]:  # nothing is recorded yet
            continue
        if closed:
            found.blame(offset, "torn", "bytes follow the closing bracket")
            break
        if comma == (line == _BRACKET) and found.entries:
            found.blame(offset, "torn", f"the separator behind step {previous} is not right")
        closed, comma = line == _BRACKET, line.endswith(SEPARATOR)
        if not closed:
            previous = _line(found, line, offset, previous, steps)
    while line:  # behind a bracket: hashed and counted, no more
        line = stream.readline(_MAX_LINE)
        prefixes.take(line)
        found.size += len(line)
    found.digests = prefixes.digests
    if not closed:
        found.blame(found.size, "torn", "the closing bracket is missing")
    return found


class _Prefixes:
    """The hashes of the first so many bytes of what goes by."""

    def __init__(self, lengths: list[int]) -> None:
        self.digests: dict[int, str] = {}
        self._awaited = lengths
        self._digest = hashlib.sha256()
        self._offset = 0

    def take(self, data: bytes) -> None:
        """Hash the next bytes, up to the longest prefix that is asked for."""
        done = 0
        while self._awaited and self._awaited[0] <= self._offset + len(data):
            length = self._awaited.pop(0)
            end = length - self._offset
            self._digest.update(data[done:end])
            done = end
            self.digests[length] = self._digest.hexdigest()
        if self._awaited:
            self._digest.update(data[done:])
        self._offset += len(data)


def _line(
    found: Survey, line: bytes, offset: int, previous: int | None, steps: set[int]
) -> int | None:
    """Take in one line; return the step of the entry before the next."""
    body = line.removesuffix(b"\n").removesuffix(b",")
    try:
        entry = orjson.loads(body)
        step = entry["step"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        entry, step = None, None
    if not isinstance(step, int) or isinstance(step, bool):
        after = f"after step {previous}" if previous is not None else "at its beginning"
        found.blame(offset, "torn", f"{len(line):,} bytes {after} are no entry")
        return previous
    if problem := _problem(entry):
        found.blame(offset, "content", f"the entry of step {step} {problem}")
    if previous is None:
        found.first = step
    elif step == previous:
        found.blame(offset, "order", f"step {step} is there twice")
    elif step < found.last:
        found.blame(offset, "order", f"step {step} stands behind step {found.last}")
    elif step != found.last + 1:
        missing = f"{found.last + 1}" if step == found.last + 2 else f"{found.last + 1}…{step - 1}"
        found.blame(offset, "order", f"step {step} follows step {found.last}: {missing} is missing")
    if not line.endswith(b"\n"):
        found.blame(offset, "torn", f"the file ends in the line of step {step}")
    found.entries += 1
    found.last = max(found.last, step)
    if step in steps:
        found.ends.setdefault(step, offset + len(body))
    return step


def _problem(entry: dict[str, Any]) -> str:
    """Return what makes `entry` one that was never written; empty if nothing does."""
    loss, pulls = entry.get("loss"), entry.get("pulls")
    if loss is None and "skipped" not in entry:
        return "has no loss, and does not say that it was skipped"
    if loss is not None and (isinstance(loss, bool) or not isinstance(loss, (int, float))):
        return f"has a loss that is no number: {loss!r}"
    if not isinstance(pulls, dict) or not all(
        isinstance(count, int) and count > 0 for count in pulls.values()
    ):
        return "has no counts of pulls"
    return ""
