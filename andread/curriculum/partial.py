"""The tokens of one source while they are being written: resumable after a kill at any moment.

    data/NAME.train.partial       tokens so far
    data/NAME.validation.partial
    data/NAME.journal.partial     how much of both is vouched for, and by which hashes

The journal is written after the tokens it vouches for are durable. Taking up again cuts both files
back to what it says, checks their hashes, and starts anew if anything does not fit.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, Final

import numpy as np

from andread.curriculum.unique import UniqueTokens
from andread.rundir import disk, files
from andread.rundir.errors import DataError
from andread.rundir.layout import RunDirectory
from andread.rundir.manifest import SPLITS, Manifest, Split, write_manifest

VERSION: Final = 1


class Partial:
    """The two token files of one source, growing.

    `dtype` is that of the tokens. `recipe` names what is being made: a journal of another one is
    not taken up. `units` is the number of pieces or blocks whose tokens are in the files.
    """

    def __init__(self, run: RunDirectory, source: str, recipe: str, dtype: str) -> None:
        self._run = run
        self._source = source
        self._recipe = recipe
        self._journal = run.partial(source, "journal")
        self._files: dict[Split, _File] = {}
        self.units = 0
        journal = self._read()
        try:
            for split in SPLITS:
                self._files[split] = _File(run, source, split, dtype, journal.get(split, {}))
        except DataError:  # the files are not what the journal says
            self.close()
            journal = {}
            self._files = {split: _File(run, source, split, dtype, {}) for split in SPLITS}
        self.units = journal.get("units", 0)

    def append(self, split: Split, data: bytes) -> None:
        """Append tokens to `split`."""
        self._files[split].append(data)

    def save(self, units: int) -> None:
        """Vouch for all that was appended: the tokens of the first `units` units."""
        state = {split: file.synced() for split, file in self._files.items()}
        head = {"version": VERSION, "recipe": self._recipe, "units": units}
        files.replace_json(self._journal, head | state)
        self.units = units

    def size(self, split: Split) -> int:
        """Return the bytes of `split` so far."""
        return self._files[split].size

    def sha256(self, split: Split) -> str:
        """Return the hash of `split` so far."""
        return self._files[split].hash.hexdigest()

    def unique_tokens(self, split: Split) -> int:
        """Return how many tokens of `split` are unique so far."""
        return self._files[split].unique.count()

    def commit(self, manifest: Manifest) -> None:
        """Give both files their final names, then write `manifest`, which commits the source."""
        for file in self._files.values():
            file.synced()
        self.close()
        files.remove(self._run.manifest(self._source))
        for split in SPLITS:
            partial = self._run.partial(self._source, split)
            files.rename(partial, self._run.tokens(self._source, split))
        write_manifest(self._run.manifest(self._source), manifest)
        files.remove(self._journal)

    def discard(self) -> None:
        """Remove what was written."""
        self.close()
        discard_partial(self._run, self._source)

    def close(self) -> None:
        """Close the files; what the journal vouches for can be taken up again."""
        for file in self._files.values():
            file.close()

    def _read(self) -> dict[str, Any]:
        """Return the journal if it is whole and of this recipe, else nothing."""
        try:
            journal = files.read_json(self._journal)
        except (FileNotFoundError, DataError):
            return {}
        fits = isinstance(journal, dict) and (
            journal.get("version") == VERSION and journal.get("recipe") == self._recipe
        )
        return journal if fits else {}


class _File:
    """One growing token file, its size, its running hash and the count of its unique tokens."""

    def __init__(
        self, run: RunDirectory, source: str, split: Split, dtype: str, vouched: dict[str, Any]
    ) -> None:
        self.size: int = vouched.get("bytes", 0)
        self.hash = hashlib.sha256()
        self.unique = UniqueTokens()
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._descriptor = disk.open(
            run.partial(source, split),
            os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
            files.FILE_MODE,
        )
        offset = 0
        while data := files.read_at(self._descriptor, min(files.CHUNK, self.size - offset), offset):
            self._see(data)
            offset += len(data)
        if vouched and (offset, self.hash.hexdigest()) != (self.size, vouched.get("sha256")):
            self.close()
            raise DataError(f"{run.partial(source, split)} is not what its journal says")
        disk.ftruncate(self._descriptor, self.size)

    def append(self, data: bytes) -> None:
        files.write_all(self._descriptor, data, self.size)
        self._see(data)
        self.size += len(data)

    def _see(self, data: bytes) -> None:
        self.hash.update(data)
        whole = len(data) // self._dtype.itemsize
        self.unique.see(np.frombuffer(data, self._dtype, whole))

    def synced(self) -> dict[str, Any]:
        disk.fsync(self._descriptor)
        return {"bytes": self.size, "sha256": self.hash.hexdigest()}

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def discard_partial(run: RunDirectory, source: str) -> None:
    """Remove what an unfinished preparation of `source` left."""
    for kind in ("journal", *SPLITS):
        files.remove(run.partial(source, kind))
