"""Giving an immutable file to another directory, at no cost where the file system can.

A reflink (the same blocks, each name free to change them) if there can be one, else a hard link
(the same file under two names), else a copy. For files that nobody writes to after their rename:
checkpoints and tokens. What is appended to or rewritten in place must be copied.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from pathlib import Path
from typing import Final

from andread.rundir import disk, files

REFLINK: Final = "reflink"
LINK: Final = "hard link"
COPY: Final = "copy"

_NO_REFLINK: Final = (
    *(errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS),
    *(errno.EPERM, errno.ETXTBSY),
)
_NO_LINK: Final = (
    *(errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS),
    errno.EACCES,
)


class Transfer:
    """One file on its way: made, it is there already or its space is taken; then `finish` it.

    `how` says which of the three it is. Use it as a context manager.
    """

    def __init__(self, source: Path, target: Path) -> None:
        self.source, self.target = source, target
        self._staged: files.Staged | None = None
        self._descriptor = files.open_regular(source, os.O_RDONLY)
        try:
            self.bytes = disk.fstat(self._descriptor).st_size
            self.how = self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> str:
        """Reflink or link, or take the space of a copy; return which."""
        with files.Staged(self.target) as staged:
            try:
                staged.clone(self._descriptor)
            except OSError as error:
                if error.errno not in _NO_REFLINK:
                    raise
            else:
                staged.commit()
                return REFLINK
        try:
            disk.link(self.source, self.target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
        else:
            if files.is_named(self._descriptor, self.target):
                return LINK
            disk.unlink(self.target)  # the name has changed hands since it was opened
        self._staged = files.Staged(self.target, self.bytes)
        return COPY

    def finish(self) -> str | None:
        """Write what is to be copied, durably; return the SHA-256 of a copy, None for a link."""
        if self._staged is None:
            return None
        digest = hashlib.sha256()
        with self._staged as staged, files.stream(self._descriptor) as stream:
            for chunk in files.chunks(stream, self.bytes):
                digest.update(chunk)
                staged.write(chunk)
            staged.commit()
        self._staged = None
        return digest.hexdigest()

    def close(self) -> None:
        """Give up what is not finished."""
        if self._staged is not None:
            self._staged.discard()
            self._staged = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Transfer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def share(source: Path, target: Path) -> str:
    """Give `target` the content of `source`; return how: reflink, hard link or copy."""
    with Transfer(source, target) as transfer:
        transfer.finish()
        return transfer.how


def must_copy(source: Path, directory: Path) -> bool:
    """Tell beforehand whether `source` could only be copied to `directory`: another file system."""
    with contextlib.suppress(OSError):
        return disk.stat(source).st_dev != disk.stat(directory).st_dev
    return True
