"""Who owns a run: a POSIX record lock on `.lock`, whose content is information only.

A record lock vanishes with its process, is not kept by a forked child, and F_GETLK tells a
reader who holds it without disturbing anything. Any close of the file by the owning process
drops the lock, so it is opened once a process and never re-opened there.

The content, one padded JSON object, is rewritten in place by the owner (`RunLock.describe`):
what it is doing, how far it is, and who supervises it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson

from andread.rundir import clock, disk, files
from andread.rundir.errors import BusyError, DataError, from_os_error

_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux
_BLOCK: Final = 4096
_LARGEST: Final = 1 << 20


class RunLock:
    """The held lock. Release it by closing; the kernel does so when the process ends.

    One thread may `describe` while another makes sure of the lock: what is described never goes
    to a descriptor that was closed meanwhile, whose number another file may have by then.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._mutex = threading.Lock()

    @classmethod
    def acquire(
        cls, path: Path, wait: float = 0.0, stopping: Callable[[], bool] = lambda: False
    ) -> RunLock:
        """Take the lock, trying for `wait` seconds; `BusyError` names the holder.

        `stopping` is polled while waiting and ends the wait. `DataError` if the lock is no file.
        """
        try:
            descriptor = files.open_regular(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise from_os_error(error, "opening the run's lock") from error
        deadline = clock.boot_seconds() + wait
        while True:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return cls(path, descriptor)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    os.close(descriptor)
                    raise from_os_error(error, "locking the run") from error
            pid = _holder_by_descriptor(descriptor)
            if pid is not None and (clock.boot_seconds() >= deadline or stopping()):
                os.close(descriptor)
                raise BusyError(
                    f"{path.parent} is in use by {named(pid)}",
                    "andrectl status tells what it does; andrectl stop ends it",
                )
            time.sleep(0.05)

    def confirm(self) -> bool:
        """Make sure that the lock's file still has its name; tell whether that had to be mended.

        A removed or replaced `.lock` would let a second owner in. Raises `BusyError` if it has.
        """
        if files.is_named(self._descriptor, self.path):
            return False
        again = RunLock.acquire(self.path)
        with self._mutex:
            os.close(self._descriptor)
            self._descriptor = again._descriptor
        return True

    def describe(self, content: dict[str, Any]) -> None:
        """Rewrite the lock's content; information only, so a failed write is no failure."""
        data = orjson.dumps(content)
        with self._mutex, contextlib.suppress(OSError):
            size = disk.fstat(self._descriptor).st_size
            if size > _LARGEST:  # no content of ours
                disk.ftruncate(self._descriptor, size := 0)
            size = max(size, len(data) + 1)  # over all there was
            size = -(-size // _BLOCK) * _BLOCK
            files.write_all(self._descriptor, data.ljust(size - 1) + b"\n", 0)

    def release(self) -> None:
        """Give the lock back."""
        with self._mutex:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _holder_by_descriptor(descriptor: int) -> int | None:
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
    return None if kind == fcntl.F_UNLCK else int(pid)


def named(pid: int) -> str:
    """Return the holder of a lock in words; across namespaces its pid is not known."""
    return f"pid {pid}" if pid > 0 else "a process not visible from here"


def holder(path: Path) -> int | None:
    """Return the pid that holds the lock at `path`, None if nobody does. Never call as owner.

    A holder on another host or in another pid namespace has a pid below 1: it cannot be seen.
    """
    try:
        with files.opened(path) as descriptor:
            return _holder_by_descriptor(descriptor)
    except FileNotFoundError:
        return None


def describe(path: Path) -> dict[str, Any]:
    """Return what the lock's owner, present or past, last wrote. Never call as owner."""
    for _ in range(3):  # the owner may be rewriting it just now
        try:
            content = files.read_json(path, _LARGEST)
        except FileNotFoundError:
            return {}
        except DataError:
            time.sleep(0.005)
            continue
        return content if isinstance(content, dict) else {}
    return {}


def signal_holder(path: Path, number: signal.Signals) -> int | None:
    """Send signal `number` to the holder of the lock; return its pid, None if nobody holds it.

    Raises `AccessError` if we may not signal the holder, `BusyError` if it cannot be seen from
    here.
    """
    while (pid := holder(path)) is not None:
        if pid < 1:
            raise BusyError(
                f"{path.parent} is in use by a process that cannot be seen from here",
                "run this on the host, or in the container, that the run is in",
            )
        if signal_if_holder(path, pid, number):
            return pid
    return None


def signal_if_holder(path: Path, pid: int, number: signal.Signals) -> bool:
    """Send signal `number` to the process `pid` if it holds the lock; tell whether it did.

    The pid is pinned by a pidfd before the lock is read, so that a recycled one is never
    signalled. Raises `AccessError` if we may not signal the holder.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if holder(path) != pid:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise from_os_error(error, f"signalling process {pid}") from error
    finally:
        os.close(descriptor)
    return True
