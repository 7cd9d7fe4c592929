"""Where a fork comes from: `.lineage.json` in the fork, `forks/ID.json` in its parent.

Both hold the same record. It is information: a fork needs nothing from its parent, and a parent
nothing from its forks; either may be moved or deleted. The id, random, tells whether what stands
under a recorded path is still the run that was meant.
"""

from __future__ import annotations

import dataclasses
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from andread.rundir import files, history
from andread.rundir.errors import AndreadError, DataError
from andread.rundir.layout import RunDirectory
from andread.rundir.tables import NOT_NEGATIVE, read_table, setting

FORMAT: Final = 1


@dataclass(frozen=True)
class Record:
    """One fork."""

    id: str = setting(check=(lambda v: v.isalnum(), "letters and digits"))
    """Of this fork alone."""
    parent: str = setting()
    """Absolute path of the run that it was made of, as it was then."""
    fork: str = setting()
    """Absolute path of the fork, as it was then."""
    step: int = setting(check=NOT_NEGATIVE)
    """The step of the checkpoint: the last that both have in common."""
    sha256: str = setting()
    """SHA-256 of that checkpoint."""
    history_length: int = setting(check=NOT_NEGATIVE)
    """Bytes of the loss history that both have in common."""
    history_sha256: str = setting()
    """SHA-256 of those bytes."""
    policy: str = setting()
    """Id of the policy that the fork's first own step runs under."""
    t: float = setting()
    """Unix seconds when it was made."""
    changes: tuple[dict[str, Any], ...] = setting(())
    """What is another in the fork, as key, old, new; nothing: a null fork."""
    shared: dict[str, str] = field(default_factory=dict)
    """How the fork got each large file: reflink, hard link or copy."""
    format: int = setting(FORMAT, check=(lambda v: v == FORMAT, f"{FORMAT}"))
    """Version of this format."""


def new_id() -> str:
    """Return the id of a new fork."""
    return secrets.token_hex(6)


def write(path: Path, record: Record) -> None:
    """Put `record` under the name `path`, atomically and durably."""
    files.replace_json(path, dataclasses.asdict(record))


def read(path: Path) -> Record | None:
    """Return the record at `path`, None if there is none; `DataError` if it is damaged."""
    try:
        return read_table(Record, files.read_json(path, 8 << 20), path.name)
    except FileNotFoundError:
        return None
    except AndreadError as error:
        raise DataError(
            f"{path} is damaged: {error.message}", "it is information only: move it away"
        ) from None


def record_in_parent(parent: RunDirectory, record: Record) -> None:
    """Record a fork in the run that it was made of."""
    files.make_directory(parent.forks)
    write(parent.fork(record.id), record)


def forks(run: RunDirectory) -> list[Path]:
    """Return the files that record the forks of `run`."""
    return [run.forks / name for name in files.names(run.forks) if name.endswith(".json")]


def is_the_fork(run: RunDirectory, record: Record) -> bool:
    """Tell whether `run` is the fork that `record` tells of."""
    found = read(run.lineage) if run.exists() else None
    return found is not None and found.id == record.id


def is_the_parent(run: RunDirectory, record: Record) -> bool:
    """Tell whether `run` is the parent that `record` tells of: it knows, or its history does."""
    if not run.exists():
        return False
    if files.exists(run.fork(record.id)):
        return True
    kept = history.prefix_sha256(run.history, record.history_length)
    return record.step > 0 and kept == record.history_sha256
