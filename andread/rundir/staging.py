"""One checkpoint file in memory: a page-aligned block laid out exactly like the file.

A snapshot is copied into it and written from it, a checkpoint is read into it: 12 bytes a
parameter, the only memory that saving takes beside the model's own. Its pages are there before
they are used: a first copy into fresh memory took twenty times as long as later ones.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Final

from andread.rundir import checkpoint

_POPULATE_WRITE: Final = 23
"""madvise: fault pages in, writable (Linux 5.14); not in Python's `mmap` module."""


class Staging:
    """The memory of one checkpoint file of `n_params` parameters."""

    def __init__(self, n_params: int) -> None:
        self.n_params = n_params
        block = mmap.mmap(-1, checkpoint.file_size(n_params))
        for advice in (mmap.MADV_HUGEPAGE, _POPULATE_WRITE):
            with contextlib.suppress(OSError):  # an older kernel: the first copy is slower
                block.madvise(advice)
        self.file = memoryview(block)
        """The whole file, 8 + 12n writable bytes."""
        size = 4 * n_params
        first = checkpoint.HEADER.size
        self.regions = tuple(
            self.file[start : start + size] for start in range(first, len(self.file), size)
        )
        """Weights, m and v: 4n writable bytes each."""

    def stamp(self, step: int) -> None:
        """Write the header of a checkpoint of `step`."""
        self.file[: checkpoint.HEADER.size] = checkpoint.pack_header(step, self.n_params)
