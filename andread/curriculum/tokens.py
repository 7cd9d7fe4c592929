"""What training reads: the windows of a source's tokens.

A window is `context` + 1 tokens; window i begins at token i × context, so that neighbours share
one token and every token but the first is predicted once a pass. Reading is pread, not mmap: a
file that shrinks under the run gives an error that can be told, where a mapping gives SIGBUS.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from andread.rundir import disk, files
from andread.rundir.errors import DataError, MissingError, from_os_error
from andread.rundir.layout import RunDirectory
from andread.rundir.manifest import SPLITS, TOKEN_BYTES, Manifest, Split, read_manifest

_RESTORE: Final = "restore it, or run `andrectl prepare` to make it anew from the same inputs"


class Windows:
    """The windows of one split of one source. Reading is safe from several threads."""

    def __init__(self, run: RunDirectory, manifest: Manifest, split: Split, context: int) -> None:
        self.path = run.tokens(manifest.source, split)
        self.context = context
        self._windows = manifest.windows(split, context)
        self._dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self._width = TOKEN_BYTES[manifest.dtype]
        self._vocabulary = manifest.vocabulary
        self._size = manifest.size(split)
        self._descriptor = -1
        try:
            self._descriptor = disk.open(
                self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            )
        except FileNotFoundError:
            raise MissingError(f"{self.path} does not exist", _RESTORE) from None
        except OSError as error:
            raise from_os_error(error, f"opening {self.path}") from error
        status = disk.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != self._size:
            self.close()
            raise DataError(
                f"{self.path} has {status.st_size:,} bytes, its manifest says {self._size:,}",
                _RESTORE,
            )

    def __len__(self) -> int:
        return self._windows

    def window(self, index: int) -> npt.NDArray[np.int64]:
        """Return window `index`: int64 of shape [context + 1].

        Raises `DataError` if the file shrank or holds a token outside the vocabulary.
        """
        if not 0 <= index < self._windows:
            raise IndexError(f"window {index} of {self._windows}")
        size = (self.context + 1) * self._width
        try:
            data = files.read_at(self._descriptor, size, index * self.context * self._width)
        except OSError as error:
            raise from_os_error(error, f"reading {self.path}") from error
        if len(data) != size:
            raise DataError(f"{self.path} became shorter while it was in use", _RESTORE)
        tokens = np.frombuffer(data, self._dtype).astype(np.int64)
        if tokens.max() >= self._vocabulary:
            raise DataError(
                f"{self.path}: window {index} holds token {tokens.max()}, not below the "
                f"vocabulary of {self._vocabulary:,}",
                _RESTORE,
            )
        return tokens

    def sha256(self, stopping: Callable[[], bool] = lambda: False) -> str:
        """Return the hash of the whole file; an empty text if `stopping()` turned true."""
        hasher, offset = hashlib.sha256(), 0
        while data := disk.pread(self._descriptor, 8 << 20, offset):
            if stopping():
                return ""
            hasher.update(data)
            offset += len(data)
        return hasher.hexdigest()

    def in_place(self) -> bool:
        """Tell whether a file of the recorded size lies under the name; trouble is a no."""
        try:
            return disk.stat(self.path).st_size == self._size
        except OSError:
            return False

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


class SourceTokens:
    """The prepared tokens of one source."""

    def __init__(self, run: RunDirectory, manifest: Manifest, context: int) -> None:
        self.name = manifest.source
        self.fingerprint = manifest.fingerprint
        self.manifest = manifest
        self.train = Windows(run, manifest, "train", context)
        self.validation = Windows(run, manifest, "validation", context)

    def epochs(self, windows: int) -> float:
        """Return how many times over `windows` training windows read its unique tokens."""
        return windows / (len(self.train) * self.manifest.unique_share)

    def verify(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Read everything and compare hashes; raise `DataError` for the first that differs."""
        for split in SPLITS:
            windows = self.train if split == "train" else self.validation
            found = windows.sha256(stopping)
            if found and found != self.manifest.sha256(split):
                raise DataError(f"{windows.path} is not what its manifest says", _RESTORE)

    def lost(self) -> list[str]:
        """Return the names of the files that no longer lie where the next start looks for them.

        Training reads on from a file that was removed while it is open; a start could not.
        """
        both = (self.train, self.validation)
        return [windows.path.name for windows in both if not windows.in_place()]

    def close(self) -> None:
        """Close both files."""
        self.train.close()
        self.validation.close()


def open_source(run: RunDirectory, source_name: str, context: int) -> SourceTokens:
    """Open the tokens of a source for windows of `context` + 1 tokens.

    Raises `MissingError` if they were not prepared or a file is gone, `DataError` if a size or
    the manifest contradicts itself, or not one training window is there.
    """
    try:
        manifest = read_manifest(run.manifest(source_name))
    except MissingError:
        raise MissingError(
            f'source "{source_name}" has no tokens yet', "run `andrectl prepare`"
        ) from None
    except OSError as error:
        raise from_os_error(error, f"reading {run.manifest(source_name)}") from error
    if manifest.source != source_name:
        raise DataError(
            f'{run.manifest(source_name)} is the manifest of source "{manifest.source}"', _RESTORE
        )
    tokens = SourceTokens(run, manifest, context)
    if not len(tokens.train):
        raise DataError(
            f'source "{source_name}" has {manifest.train_tokens:,} training tokens; one window '
            f"needs {context + 1:,}",
            "add text to it, or drop it from run.toml",
        )
    return tokens
