"""A pivot on disk: its journal `.pivot.json`, and its archive `archive/pivot_NNNNNN/`.

    .pivot.json             from the asking to the proof: what is wanted, and what was found
    archive/pivot_NNNNNN/   `-2`, `-3` where a step saw several
        .samples.json       the sidecars as they were, byte for byte
        .state.json
        policy.json         the list of policies before the pivot
        manifest.json       hashes of these, the checkpoint and the history; later the proof

The journal never says how far a pivot has come: that is read off the directory. `policy.json`
alone tells whether it is committed, and its replacement is the commit.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from andread.rundir import files
from andread.rundir.errors import AndreadError, DataError
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import Policy, policy_from
from andread.rundir.tables import NOT_NEGATIVE, one_of, read_table, setting

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
_NAME: Final = re.compile(r"pivot_([0-9]{6,})(-[0-9]+)?")


@dataclass(frozen=True)
class Journal:
    """A pivot in flight."""

    target: dict[str, Any]
    """Content of the policy that is wanted; its `begins_after` counts for nothing."""
    base: str = setting()
    """Id of the policy that it was made from, the last one before it."""
    at: str = setting(check=one_of("step", "cadence"))
    """Which boundary was asked for."""
    running: bool = setting()
    """Whether the run was found running."""
    t: float = setting()
    """Unix seconds when it was asked for."""
    supervisor: dict[str, Any] = field(default_factory=dict)
    """Who ran the run, as its lock told."""
    step: int | None = setting(None, check=NOT_NEGATIVE)
    """The boundary, once the run is stopped there."""
    archive: str = setting("")
    """Name of the archive, once it is about to be made."""
    pinned: bool = setting(False)
    """Whether the pivot has pinned the checkpoint itself."""
    format: int = setting(FORMAT, check=(lambda v: v == FORMAT, f"{FORMAT}"))

    def policy(self, step: int | None = None) -> Policy:
        """Return the policy that is wanted, as it begins after `step`, else after the journal's."""
        after = self.step if step is None else step
        return policy_from({**self.target, "begins_after": after or 0}, "the pivot's policy")

    def committed(self, policies: Sequence[Policy]) -> bool:
        """Tell whether the policy that is wanted is the last one of `policies`."""
        return self.step is not None and policies[-1].id == self.policy().id


def read(run: RunDirectory) -> Journal | None:
    """Return the journal, None if no pivot is in flight; `DataError` if it is damaged."""
    try:
        return read_table(Journal, files.read_json(run.pivot, 8 << 20), run.pivot.name)
    except FileNotFoundError:
        return None
    except AndreadError as error:
        raise DataError(
            f"{run.pivot} is damaged: {error.message}",
            "policy.json alone says what is in force; look at it, then remove the journal",
        ) from None


def write(run: RunDirectory, journal: Journal) -> None:
    """Put the journal in place, durably."""
    files.replace_json(run.pivot, dataclasses.asdict(journal))


def remove(run: RunDirectory) -> None:
    """End the pivot: nothing is in flight any more."""
    files.remove(run.pivot)


def archive_name(run: RunDirectory, step: int) -> str:
    """Return the name of the next archive of `step`: `-2` and so on where there are some."""
    name = f"pivot_{step:06d}"
    number = 1
    while files.exists(run.archive / (name if number == 1 else f"{name}-{number}")):
        number += 1
    return name if number == 1 else f"{name}-{number}"


def archive(run: RunDirectory, name: str, manifest: dict[str, Any]) -> dict[str, Any]:
    """Copy the sidecars and policy.json into the archive `name`; return its manifest.

    When it returns all of it is durable. A sidecar that is not there is None in the manifest.
    """
    folder = _folder(run, name)
    files.make_directory(run.archive)
    files.make_directory(folder, exists_ok=False)
    copied = {
        path.name: _copy(path, folder / path.name) for path in (run.samples, run.state, run.policy)
    }
    manifest = {"format": FORMAT, **manifest, "files": copied}
    write_manifest(run, name, manifest)
    return manifest


def write_manifest(run: RunDirectory, name: str, manifest: dict[str, Any]) -> None:
    """Replace the manifest of the archive `name`."""
    files.replace_json(_folder(run, name) / MANIFEST, manifest)


def read_manifest(run: RunDirectory, name: str) -> dict[str, Any]:
    """Return the manifest of the archive `name`; `DataError` if damaged, `OSError` if not there."""
    path = _folder(run, name) / MANIFEST
    value = files.read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path} is not a table", "it is damaged")
    return value


def archives(run: RunDirectory) -> list[str]:
    """Return the names of all archives, in the order of their steps."""
    names = [name for name in files.names(run.archive) if _NAME.fullmatch(name)]
    return sorted(names, key=lambda name: [int(n) for n in re.findall(r"\d+", name)])


def restore(run: RunDirectory, name: str) -> None:
    """Put the archived sidecars back, byte for byte; policy.json is left to the caller."""
    for path in (run.samples, run.state):
        kept = _folder(run, name) / path.name
        if files.exists(kept):
            files.replace(path, files.read_bytes(kept, files.UNLIMITED))


def discard(run: RunDirectory, name: str) -> None:
    """Remove the archive `name` of a pivot that is off; it may be gone, or never made."""
    if name and files.exists(folder := _folder(run, name)):
        files.remove_tree(folder)


def _folder(run: RunDirectory, name: str) -> Path:
    """Return the folder of an archive; `DataError` for a name that is none."""
    if not _NAME.fullmatch(name):
        raise DataError(f"{name!r} is no name of an archive", "the journal is damaged")
    return run.archive / name


def _copy(path: Path, target: Path) -> dict[str, Any] | None:
    """Copy the file at `path`, durably; return its size and hash, None if it is not there."""
    try:
        data = files.read_bytes(path, files.UNLIMITED)
    except FileNotFoundError:
        return None
    files.replace(target, data)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
