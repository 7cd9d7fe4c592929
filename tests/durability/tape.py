"""A recording of what the layer does to a directory, to be played again into a model of a disk."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.durability.layer import Call, replaced

Operation = tuple[Any, ...]
Tree = dict[str, bytes | None]
"""Relative path to content; None for a directory."""


def tree_of(root: Path) -> Tree:
    """Return everything below `root`."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        found[str(path.relative_to(root))] = None if path.is_dir() else path.read_bytes()
    return found


class Tape:
    """Records what the layer does below `root`, with marks of what is vouched for in between.

    Files and directories have numbers that outlive their names; those that were there at the
    beginning are numbered in `names`, their content is in `before`. With `failing` the fsync of
    that number, from 1 on, fails.
    """

    def __init__(self, root: Path, failing: int = 0) -> None:
        self.root = root
        self.failing = failing
        self.syncs = 0
        self.before = tree_of(root)
        self.names = {name: number for number, name in enumerate(["", *self.before])}
        self.operations: list[Operation] = []
        self._numbers = dict(self.names)
        self._next = len(self.names)
        self._open: dict[int, int] = {}
        self._mutex = threading.RLock()

    @contextlib.contextmanager
    def running(self) -> Iterator[Tape]:
        """Record for a while."""
        with replaced(self._make):
            yield self

    def mark(self, what: str, step: int) -> None:
        """Note that something is vouched for from here on."""
        with self._mutex:
            self.operations.append(("mark", what, step))

    def _make(self, name: str, call: Call) -> Call:
        note = getattr(self, f"on_{name}", None)

        def recorded(*arguments: Any, **options: Any) -> Any:
            if note is None:
                return call(*arguments, **options)
            with self._mutex:
                if name == "fsync":
                    self._fail_if_due(*arguments)
                if name == "open":
                    arguments = (*arguments, os.path.lexists(arguments[0]))
                    result = call(*arguments[:-1], **options)
                else:
                    result = call(*arguments, **options)
                note(result, *arguments)
            return result

        return recorded

    def _fail_if_due(self, descriptor: int) -> None:
        self.syncs += 1
        if self.syncs == self.failing:
            self.operations.append(("lost", self._open[descriptor]))
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _place(self, path: Any) -> tuple[int, str]:
        """Return the number of the directory that `path` is in, and its name there."""
        relative = Path(path).relative_to(self.root)
        parent = "" if str(relative.parent) == "." else str(relative.parent)
        return self._numbers[parent], relative.name

    def _key(self, path: Any) -> str:
        relative = str(Path(path).relative_to(self.root))
        return "" if relative == "." else relative

    def on_open(self, descriptor: int, path: Any, flags: int, *rest: Any) -> None:
        key = self._key(path)
        if flags & os.O_CREAT and not rest[-1]:
            self._new(path, "file")
        self._open[descriptor] = self._numbers[key]
        if flags & os.O_TRUNC:
            self.operations.append(("truncate", self._numbers[key], 0))

    def _new(self, path: Any, kind: str) -> None:
        number, self._next = self._next, self._next + 1
        self._numbers[self._key(path)] = number
        self.operations.append(("create", *self._place(path), number, kind))

    def on_write(self, written: int, descriptor: int, data: Any) -> None:
        piece = bytes(memoryview(data).cast("B")[:written])
        self.operations.append(("append", self._open[descriptor], piece))

    def on_pwrite(self, written: int, descriptor: int, data: Any, offset: int) -> None:
        piece = bytes(memoryview(data).cast("B")[:written])
        self.operations.append(("write", self._open[descriptor], offset, piece))

    def on_ftruncate(self, _: None, descriptor: int, size: int) -> None:
        self.operations.append(("truncate", self._open[descriptor], size))

    def on_posix_fallocate(self, _: None, descriptor: int, offset: int, size: int) -> None:
        self.operations.append(("allocate", self._open[descriptor], offset + size))

    def on_fsync(self, _: None, descriptor: int) -> None:
        self.operations.append(("fsync", self._open[descriptor]))

    def on_rename(self, _: None, path: Any, target: Any) -> None:
        old, new = self._key(path), self._key(target)
        directory, name = self._place(path)
        where, other = self._place(target)
        assert directory == where, "a rename stays in its directory"
        number = self._numbers.pop(old)
        self._numbers[new] = number
        for key in [key for key in self._numbers if key.startswith(f"{old}/")]:
            self._numbers[new + key[len(old) :]] = self._numbers.pop(key)
        self.operations.append(("rename", directory, name, other, number))

    def on_unlink(self, _: None, path: Any) -> None:
        self._numbers.pop(self._key(path))
        self.operations.append(("unlink", *self._place(path)))

    def on_mkdir(self, _: None, path: Any, *mode: int) -> None:
        self._new(path, "directory")

    def on_rmdir(self, _: None, path: Any) -> None:
        self.on_unlink(_, path)
