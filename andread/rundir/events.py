"""`.events.json`: what happened to the run, one JSON object a line.

Every event has `event` (its kind), `t` (unix seconds), `boot` and `up` (the boot and seconds
since it: ages come from these), and what its kind needs. Each is one O_APPEND write; a reader
skips lines that are torn.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from andread.rundir import clock, disk, files


def make(kind: str, /, **fields: Any) -> dict[str, Any]:
    """Return an event of `kind` that happened now."""
    return {
        "event": kind,
        "t": round(time.time(), 3),
        "boot": clock.boot_id(),
        "up": round(clock.boot_seconds(), 3),
        **fields,
    }


def append(path: Path, event: dict[str, Any]) -> None:
    """Append `event` to `path`.

    Raises `OSError` if that fails, `DataError` if `path` is not a regular file.
    """
    files.append_line(path, orjson.dumps(event))


def emit(path: Path, kind: str, /, **fields: Any) -> dict[str, Any]:
    """Append an event of `kind` that happens now, and return it; raises as `append`."""
    event = make(kind, **fields)
    append(path, event)
    return event


def sync(path: Path) -> None:
    """Make what was appended to `path` so far durable; raises as `append`. It may not be there."""
    with contextlib.suppress(FileNotFoundError), files.opened(path) as descriptor:
        disk.fsync(descriptor)


def read(path: Path, offset: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the events from byte `offset` on; nothing if there is no such file."""
    with contextlib.suppress(FileNotFoundError), files.opened(path) as descriptor:
        yield from _events(descriptor, offset)


def _events(descriptor: int, offset: int) -> Iterator[dict[str, Any]]:
    with files.stream(descriptor, offset) as stream:
        for line in files.lines(stream):
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if isinstance(event, dict) and _is_whole(event):
                yield event


def _is_whole(event: dict[str, Any]) -> bool:
    """Tell whether `event` has what every event has."""
    clocks = (event.get("t"), event.get("up"))
    return isinstance(event.get("event"), str) and all(isinstance(c, (int, float)) for c in clocks)


def age(event: dict[str, Any]) -> float:
    """Return the seconds since `event`: by the boot clock, across a reboot by the wall clock."""
    if event.get("boot") == clock.boot_id():
        return max(0.0, clock.boot_seconds() - float(event["up"]))
    return max(0.0, time.time() - float(event["t"]))
