"""The newest checkpoint, read and hashed in a thread while the heavy libraries are imported."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from andread.rundir import checkpoint, files, recovery
from andread.rundir.companion import Companion
from andread.rundir.errors import AndreadError, DataError
from andread.rundir.layout import RunDirectory
from andread.rundir.staging import Staging


class EarlyRead:
    """A reading of the newest checkpoint, begun at once. Under the run's lock only.

    It decides nothing: what it could not read is read again, and judged, by whoever loads.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._path: Path | None = None
        self._staging: Staging | None = None
        self._digest = ""
        self._found = _newest(run)
        self._thread = threading.Thread(target=self._read, args=(run,), name="early", daemon=True)
        self._thread.start()

    @property
    def found(self) -> bool:
        """Tell whether there is a checkpoint: then a run resumes, or must not start."""
        return self._found is not None

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

    def _read(self, run: RunDirectory) -> None:
        if self._found is None:
            return
        step, n_params = self._found.step, self._found.n_params
        path = run.checkpoint(step)
        with contextlib.suppress(OSError, DataError):
            self._staging = Staging(n_params)
            self._digest = checkpoint.read_image(path, step, n_params, self._staging.file)
            self._path = path


def _newest(run: RunDirectory) -> Companion | None:
    """Return the newest companion if its checkpoint has the size that it says."""
    try:
        found = recovery.newest_companion(run)
        if found and files.size(run.checkpoint(found.step)) == checkpoint.file_size(found.n_params):
            return found
    except (OSError, AndreadError):
        pass
    return None
