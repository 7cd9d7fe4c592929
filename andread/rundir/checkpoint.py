"""The checkpoint file: five contiguous regions, little-endian, no padding, no metadata.

    offset          bytes   content
    0               4       int32 step
    4               4       int32 n (parameters)
    8               4n      float32 weights, in the model's parameter order
    8 + 4n          4n      float32 m, Adam's average of gradients
    8 + 8n          4n      float32 v, Adam's average of squared gradients
    8 + 12n                 end of file

`read_image` reads such a file against what its companion vouches for; everything that can be
wrong with one has its own message in `InvalidCheckpoint`.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from andread.rundir import disk, files
from andread.rundir.errors import DataError
from andread.rundir.hashing import ThreadedHash
from andread.rundir.settings import MAX_PARAMETERS, MAX_STEP

HEADER: Final = struct.Struct("<ii")
REGIONS: Final = ("weights", "m", "v")


class InvalidCheckpoint(DataError):  # noqa: N818 - a verdict on a file, told, and recovered from
    """A file that is no checkpoint one could resume from; the message says why."""


@dataclass(frozen=True)
class Header:
    """The first eight bytes: the step and the number of parameters."""

    step: int
    n_params: int


def file_size(n_params: int) -> int:
    """Return the exact size in bytes of a checkpoint of `n_params` parameters."""
    return HEADER.size + 12 * n_params


def pack_header(step: int, n_params: int) -> bytes:
    """Return the header's eight bytes; `n_params` must fit an int32."""
    assert 0 <= step <= MAX_STEP and 0 < n_params <= MAX_PARAMETERS
    return HEADER.pack(step, n_params)


def read_header(descriptor: int, path: Path) -> Header:
    """Read and check the header against the file's size; raise `InvalidCheckpoint`."""
    size = disk.fstat(descriptor).st_size
    head = files.read_at(descriptor, HEADER.size, 0)
    if len(head) < HEADER.size:
        raise InvalidCheckpoint(f"{path.name} is cut off in its header ({size} bytes)")
    step, n_params = HEADER.unpack(head)
    if step < 0:
        raise InvalidCheckpoint(f"{path.name} has a negative step, {step}")
    if n_params < 1:
        raise InvalidCheckpoint(f"{path.name} claims {n_params} parameters")
    expected = file_size(n_params)
    if size < expected:
        region = REGIONS[(size - HEADER.size) // (4 * n_params)]
        raise InvalidCheckpoint(
            f"{path.name} is cut off in region {region}: {size:,} bytes where {n_params:,} "
            f"parameters take {expected:,}"
        )
    if size > expected:
        raise InvalidCheckpoint(
            f"{path.name} is too long: {size:,} bytes where {n_params:,} parameters take "
            f"{expected:,}"
        )
    return Header(step, n_params)


def read_image(path: Path, step: int | None, n_params: int, into: memoryview | None = None) -> str:
    """Read the checkpoint at `path` and return the SHA-256 of the whole file.

    With `into`, 8 + 12n writable bytes such as `Staging.file`, the file is read straight into
    it; without, it is only checked. `step` None accepts any step. Hashing runs alongside.

    Raises `InvalidCheckpoint` for what is wrong with the file, `OSError` for what is wrong with
    reading it.
    """
    with files.opened(path) as descriptor, ThreadedHash() as digest:
        header = read_header(descriptor, path)
        if step is not None and header.step != step:
            raise InvalidCheckpoint(f"{path.name} says it is of step {header.step}")
        if header.n_params != n_params:
            raise InvalidCheckpoint(
                f"{path.name} has {header.n_params:,} parameters, the model has {n_params:,}"
            )
        size = file_size(n_params)
        spare = [memoryview(bytearray(0 if into else min(files.CHUNK, size))) for _ in range(2)]
        hashed: deque[Future[None]] = deque()
        for number, start in enumerate(range(0, size, files.CHUNK)):
            if len(hashed) == len(spare):
                hashed.popleft().result()
            window = into[start : start + files.CHUNK] if into else spare[number % 2]
            target = window[: size - start]
            if (count := files.read_into(descriptor, target, start)) < len(target):
                region = REGIONS[max(0, start + count - HEADER.size) // (4 * n_params)]
                raise InvalidCheckpoint(f"{path.name} ends early in region {region}")
            hashed.append(digest.update(target))
        return digest.hexdigest()


def hashes(path: Path) -> dict[str, str]:
    """Return the SHA-256 of the checkpoint at `path`, as `file`, and of each of its regions.

    Raises `InvalidCheckpoint` for what is wrong with the file, `OSError` with reading it.
    """
    with files.opened(path) as descriptor:
        header = read_header(descriptor, path)
        found = {}
        whole = ThreadedHash(HEADER.pack(header.step, header.n_params))
        with whole, files.stream(descriptor, HEADER.size) as stream:
            for name in REGIONS:
                region = hashlib.sha256()
                for chunk in files.chunks(stream, 4 * header.n_params):
                    whole.update(memoryview(chunk))
                    region.update(chunk)
                found[name] = region.hexdigest()
            return {"file": whole.hexdigest(), **found}
