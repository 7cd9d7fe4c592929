"""The protocol with one thing wrong in it: each must be caught by the tests of this room.

Most are made at the layer, so they hold whatever the code above it looks like.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from andread.rundir import commit, companion, disk, files
from andread.rundir.layout import TEMPORARY_INFIX


def _final(path: Any) -> Path:
    return Path(path).with_name(Path(path).name.split(TEMPORARY_INFIX)[0])


@contextlib.contextmanager
def _patched(**calls: Callable[..., Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, call in calls.items():
            stack.enter_context(mock.patch.object(disk, name, call))
        yield


def _no_fsync_of(kind: Callable[[int], bool]) -> contextlib.AbstractContextManager[None]:
    real = disk.fsync
    return _patched(fsync=lambda d: None if kind(os.fstat(d).st_mode) else real(d))


def no_file_fsync() -> contextlib.AbstractContextManager[None]:
    """Files are renamed before their bytes are durable."""
    return _no_fsync_of(stat.S_ISREG)


def no_directory_fsync() -> contextlib.AbstractContextManager[None]:
    """Names are vouched for before they are durable."""
    return _no_fsync_of(stat.S_ISDIR)


def no_temporary_file() -> contextlib.AbstractContextManager[None]:
    """Files are written under their final names."""
    real_open, real_rename = disk.open, disk.rename

    def opened(path: Any, flags: int, *mode: Any) -> int:
        if TEMPORARY_INFIX in Path(path).name:
            return real_open(_final(path), flags & ~os.O_EXCL | os.O_TRUNC, *mode)
        return real_open(path, flags, *mode)

    def renamed(path: Any, target: Any) -> None:
        if TEMPORARY_INFIX not in Path(path).name:
            real_rename(path, target)

    return _patched(open=opened, rename=renamed)


def short_write_ignored() -> contextlib.AbstractContextManager[None]:
    """A write that came out short is taken for whole."""
    real = disk.pwrite
    calls = iter(range(1 << 40))

    def written(descriptor: int, data: Any, offset: int) -> int:
        view = memoryview(data).cast("B")
        short = len(view) > 2000 and next(calls) % 3 == 1
        real(descriptor, view[: len(view) // 2] if short else view, offset)
        return len(view)

    return _patched(pwrite=written)


@contextlib.contextmanager
def companion_after_the_file() -> Iterator[None]:
    """The .bin gets its name before there is anything to resume it with."""
    put_off: list[tuple[Any, ...]] = []
    real_write, real_commit = companion.write, commit.commit

    def commits(*arguments: Any, **options: Any) -> Any:
        with mock.patch.object(companion, "write", lambda *given: put_off.append(given)):
            made = real_commit(*arguments, **options)
        real_write(*put_off.pop())
        return made

    with mock.patch.object(commit, "commit", commits):
        yield


@contextlib.contextmanager
def pruned_before_the_sync() -> Iterator[None]:
    """Old checkpoints go while the new one is not yet durable."""
    real = commit.commit

    def commits(run: Any, *arguments: Any, **options: Any) -> Any:
        for step in run.checkpoint_steps():
            if step not in commit.pinned(run):
                commit.prune(run, step)
        return real(run, *arguments, **options)

    with mock.patch.object(commit, "commit", commits):
        yield


@contextlib.contextmanager
def history_not_synced() -> Iterator[None]:
    """A checkpoint vouches for entries that are not durable."""
    from andread.rundir.history import LossHistory

    with mock.patch.object(LossHistory, "sync", lambda self: None):
        yield


@contextlib.contextmanager
def companion_pruned_first() -> Iterator[None]:
    """A prune leaves a .bin without what it needs for a moment."""

    def prune(run: Any, step: int) -> None:
        files.remove(run.companion(step))
        files.remove(run.checkpoint(step))

    with mock.patch.object(commit, "prune", prune):
        yield


@contextlib.contextmanager
def dead_renames_believed() -> Iterator[None]:
    """A start vouches for what a dead process renamed, without making it durable."""
    real = commit.sweep

    def sweep(run: Any) -> list[str]:
        with mock.patch.object(files, "sync_directory", lambda path: None):
            return real(run)

    with mock.patch.object(commit, "sweep", sweep):
        yield


@contextlib.contextmanager
def fsync_tried_again() -> Iterator[None]:
    """An fsync that failed is tried again on the same file, and believed."""
    real = disk.fsync

    def again(descriptor: int) -> None:
        try:
            real(descriptor)
        except OSError:
            real(descriptor)

    with mock.patch.object(disk, "fsync", again):
        yield


ALL: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    made.__name__: made
    for made in (
        no_file_fsync,
        no_directory_fsync,
        no_temporary_file,
        short_write_ignored,
        companion_after_the_file,
        pruned_before_the_sync,
        history_not_synced,
        companion_pruned_first,
        dead_renames_believed,
        fsync_tried_again,
    )
}


def in_force(name: str) -> contextlib.AbstractContextManager[None]:
    """Have the mutant `name` in force for a while; none for an empty name."""
    return ALL[name]() if name else contextlib.nullcontext()
