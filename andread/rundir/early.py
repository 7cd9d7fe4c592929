"""The newest checkpoint, read and hashed in a thread while the heavy libraries are imported."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from andread.rundir import checkpoint, recovery
from andread.rundir.errors import DataError
from andread.rundir.layout import RunDirectory
from andread.rundir.staging import Staging


class EarlyRead:
    """A reading of the newest checkpoint, begun at once. Under the run's lock only.

    It decides nothing: what it could not read is read again, and judged, by whoever loads.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._staging: Staging | None = None
        self._path: Path | None = None
        self._digest = ""
        self._thread = threading.Thread(target=self._read, name="early", daemon=True)
        self._thread.start()

    def staging(self, n_params: int) -> Staging:
        """Return memory for checkpoints of `n_params` parameters, with what was read in it."""
        self._thread.join()
        if self._staging is None or self._staging.n_params != n_params:
            self._path, self._staging = None, Staging(n_params)
        return self._staging

    def take(self, path: Path) -> str | None:
        """Return the SHA-256 of `path` if it is what the memory holds, once; None otherwise."""
        self._thread.join()
        taken, self._path = self._path, None
        return self._digest if taken == path else None

    def _read(self) -> None:
        with contextlib.suppress(OSError, DataError):
            found = recovery.newest_companion(self._run)
            if found is None:
                return
            path = self._run.checkpoint(found.step)
            if path.lstat().st_size != checkpoint.file_size(found.n_params):
                return
            self._staging = Staging(found.n_params)
            self._digest = checkpoint.read_image(
                path, found.step, found.n_params, self._staging.file
            )
            self._path = path
