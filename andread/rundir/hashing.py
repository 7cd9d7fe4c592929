"""SHA-256 in a thread of its own, so that hashing runs beside the disk instead of behind it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from andread.rundir import files


class ThreadedHash:
    """A SHA-256 whose `update` returns at once; what it was given must stay as it is till then."""

    def __init__(self, start: bytes = b"") -> None:
        self._digest = hashlib.sha256(start)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hash")
        self._asked: list[Future[None]] = []

    def update(self, data: memoryview) -> Future[None]:
        """Hash `data`, not empty, behind all before it; the future tells when that is done."""
        for start in range(0, len(data), files.CHUNK):
            piece = data[start : start + files.CHUNK]
            self._asked.append(self._pool.submit(self._digest.update, piece))
        return self._asked[-1]

    def hexdigest(self, beat: Callable[[], None] = lambda: None) -> str:
        """Wait for all that was handed over and return the digest; `beat` after each piece."""
        for future in self._asked:
            future.result()
            beat()
        return self._digest.hexdigest()

    def __enter__(self) -> ThreadedHash:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
