"""The files of a source: found in a fixed order, opened without ever hanging.

Paths are files, folders (read recursively) or globs; relative ones are taken from the run
directory. Within each path the order is that of the sorted names; a file that is met twice counts
once. Hidden files are found only if named.
"""

from __future__ import annotations

import contextlib
import glob
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from andread.rundir.errors import MissingError
from andread.rundir.manifest import digest
from andread.rundir.settings import SourceSettings

_SUFFIXES: Final[dict[str, tuple[str, ...]]] = {
    "text": ("",),
    "jsonl": (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"),
    "parquet": (".parquet",),
    "tokens": (".bin",),
}
"""What is taken from a folder, by format; a file that is named itself may be called anything."""


@dataclass(frozen=True)
class Input:
    """One file of a source, as it was when it was found."""

    name: str
    """As errors and the manifest call it: relative to the run directory if given so."""
    path: Path
    size: int
    modified: int
    """Modification time in nanoseconds."""
    regular: bool
    """False for a FIFO, a device, or a file that cannot be looked at."""


def find_inputs(source: SourceSettings, root: Path) -> list[Input]:
    """Return the files of `source`; relative paths are taken from `root`.

    Raises `MissingError` naming the source and the first path that matches nothing.
    """
    found: dict[str, Input] = {}
    for pattern in source.paths:
        names = _matches(pattern, root, _SUFFIXES[source.format])
        if not names:
            raise MissingError(
                f'source "{source.name}": nothing matches "{pattern}"',
                f"relative paths are taken from {root}; correct paths in run.toml",
            )
        for name in names:
            found.setdefault(os.path.realpath(root / name), _look(name, root / name))
    return list(found.values())


def inputs_digest(inputs: Sequence[Input]) -> str:
    """Return a hash that changes when any path, size or modification time does."""
    return digest((entry.name, entry.size, entry.modified) for entry in inputs)


def _matches(pattern: str, root: Path, suffixes: tuple[str, ...]) -> list[str]:
    """Return the names that `pattern` stands for, sorted, folders being replaced by their files."""
    pattern = os.path.expanduser(pattern)  # noqa: PTH111 - a pattern is no path
    if os.path.lexists(root / pattern):
        hits = [pattern]
    else:
        hits = sorted(glob.glob(pattern, root_dir=root, recursive=True))  # noqa: PTH207
    explicit = len(hits) == 1 and hits[0] == pattern
    names: list[str] = []
    for hit in hits:
        if (root / hit).is_dir():
            # `**` matches the folders as well as what lies in them
            names += _walk(hit, root, suffixes) if explicit or "**" not in pattern else []
        else:
            names.append(hit)
    return names


def _walk(folder: str, root: Path, suffixes: tuple[str, ...]) -> list[str]:
    names: list[str] = []
    for place, folders, entries in os.walk(root / folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        relative = Path(folder) / Path(place).relative_to(root / folder)
        names += [
            str(relative / name)
            for name in entries
            if not name.startswith(".") and name.endswith(suffixes)
        ]
    return sorted(names)


def _look(name: str, path: Path) -> Input:
    try:
        status = path.stat()
    except OSError:
        return Input(name, path, 0, 0, regular=False)
    if not stat.S_ISREG(status.st_mode):
        return Input(name, path, 0, 0, regular=False)
    return Input(name, path, status.st_size, status.st_mtime_ns, regular=True)


@contextlib.contextmanager
def open_input(entry: Input) -> Iterator[BinaryIO]:
    """Open an input for reading; raise `OSError` where that cannot be done, without hanging."""
    if not entry.regular:
        entry.path.stat()  # says why it cannot be looked at
        raise OSError("not a regular file")
    descriptor = os.open(entry.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=1 << 18) as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a regular file")
        yield stream
