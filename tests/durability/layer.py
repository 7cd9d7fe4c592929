"""The layer of `andread/rundir/disk.py` with other hands in it: each call failed, or recorded.

Everything that a run directory sees goes through the names in `disk.CALLS`. So a process "dies"
in here when every later call is refused: nothing it does reaches the disk any more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from andread.rundir import disk

Call = Callable[..., Any]


class Died(BaseException):
    """The process is dead from here on; raised at every call that it still tries."""


@contextlib.contextmanager
def replaced(make: Callable[[str, Call], Call]) -> Iterator[None]:
    """Put `make(name, call)` in the place of each of the layer's calls."""
    before = {name: getattr(disk, name) for name in disk.CALLS}
    for name, call in before.items():
        setattr(disk, name, make(name, call))
    try:
        yield
    finally:
        for name, call in before.items():
            setattr(disk, name, call)


ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EINTR": errno.EINTR, "EROFS": errno.EROFS}
SHORT = {"write", "pwrite", "preadv", "pread"}


@dataclass(frozen=True)
class Fault:
    """What goes wrong at the `number`-th call, from 1 on.

    `kind` is an error's name, `short` (half the bytes), `die` (this life ends, nothing more
    reaches the disk) or `kill` (SIGKILL). `lasting`: from then on. `only`: which calls count.
    """

    kind: str
    number: int
    lasting: bool = False
    only: tuple[str, ...] = disk.CALLS
    after: bool = False
    """With `die` and `kill`: once the call is done, not before."""

    def __str__(self) -> str:
        how = "from call" if self.lasting else "at call"
        return f"{self.kind} {how} {self.number}{' (after it)' if self.after else ''}"


class Faulty:
    """The layer with a fault in it; `met` tells whether it came to that, `where` at what."""

    def __init__(self, fault: Fault, tell: Callable[[bytes], Any] = lambda where: None) -> None:
        self.fault = fault
        self._tell = tell
        self.calls = 0
        self.where = ""
        self._dead = False
        self._mutex = threading.Lock()

    @property
    def met(self) -> bool:
        return bool(self.where)

    def make(self, name: str, call: Call) -> Call:
        """Return `call` as it behaves with the fault."""
        fault = self.fault

        def faulty(*arguments: Any, **options: Any) -> Any:
            with self._mutex:
                if self._dead:
                    raise Died
                counts = name in fault.only and (fault.kind != "short" or name in SHORT)
                self.calls += counts
                due = counts and (
                    self.calls == fault.number or (fault.lasting and self.calls > fault.number)
                )
                if due and not self.where:
                    self.where = f"{name}{_target(arguments)}"
                    self._tell(f"fault met: {self.where}\n".encode())
                if due and fault.kind in ("die", "kill") and not fault.after:
                    self._end()
            if not due:
                return call(*arguments, **options)
            if fault.kind == "short":
                return _short(name, call, arguments)
            if fault.kind in ("die", "kill"):
                call(*arguments, **options)
                self._end()
            number = ERRORS[fault.kind]
            raise OSError(number, os.strerror(number), _target(arguments).strip() or None)

        return faulty

    def _end(self) -> None:
        if self.fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        self._dead = True
        raise Died

    @contextlib.contextmanager
    def active(self) -> Iterator[Faulty]:
        """Have the fault in the layer for a while; the death of the life in it ends here."""
        with replaced(self.make), contextlib.suppress(Died):
            yield self


def _short(name: str, call: Call, arguments: tuple[Any, ...]) -> Any:
    """Do half of a read or write, at least a byte of it."""
    first, data, *rest = arguments
    if name == "preadv":
        view = memoryview(data[0]).cast("B")
        return call(first, [view[: max(1, len(view) // 2)]], *rest)
    if name == "pread":
        return call(first, max(1, data // 2), *rest)
    view = memoryview(data).cast("B")
    return call(first, view[: max(1, len(view) // 2)], *rest)


def _target(arguments: tuple[Any, ...]) -> str:
    """Return what a call is about, for a message."""
    first = arguments[0] if arguments else ""
    if isinstance(first, int):
        with contextlib.suppress(OSError):
            return f" {Path(f'/proc/self/fd/{first}').readlink()}"
    return f" {first}"
