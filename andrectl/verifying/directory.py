"""The directory itself: who holds it, what lies in it, what is in flight, what will still fit."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from andread.rundir import checkpoint, commit, errors, lock, pivot
from andread.rundir.layout import REJECTED_SUFFIX, TEMPORARY_INFIX, step_of
from andrectl import checks, cost, render
from andrectl.checks import Looked, Outcome
from andrectl.verifying.evidence import Evidence

_DIRECTORIES: Final = ("data", "requests", "pins", "archive", "forks")
_SHOWN: Final = 8


def held(evidence: Evidence) -> Outcome:
    """Tell who holds the run. Taking the lock would disturb; asking does not."""
    pid = lock.holder(evidence.run.lock)
    if pid is None:
        return checks.ok("nobody holds the run: it can be started")
    return checks.ok(f"{lock.named(pid)} holds the run ({evidence.owner.phase or 'busy'})")


def layout(evidence: Evidence) -> Looked:
    """Name what should not be there, and what is not the kind of file that it should be."""
    run, found = evidence.run, []
    entries = sorted(run.path.iterdir())
    for path in entries:
        if (wrong := _wrong_kind(evidence, path)) is not None:
            found.append(checks.failed(wrong, "put back the file that it stands for"))
    leftovers = [path.name for path in entries if TEMPORARY_INFIX in path.name]
    if leftovers and not evidence.running:
        found.append(
            checks.warning(
                f"left over by a dead writer: {_names(leftovers)}", "the next start sweeps them"
            )
        )
    alone = [
        path.name
        for path in entries
        if path.suffix == ".json"
        and step_of(path.stem) is not None
        and not path.with_suffix(".bin").exists()
    ]
    if alone and not evidence.running:
        found.append(
            checks.warning(
                f"companions without a checkpoint: {_names(alone)}", "the next start sweeps them"
            )
        )
    rejected = [path.name for path in entries if path.name.endswith(REJECTED_SUFFIX)]
    if rejected:
        found.append(
            checks.warning(
                f"set aside as invalid: {_names(rejected)}",
                "they count for nothing: look at the disk, then remove them",
            )
        )
    unknown = [path.name for path in entries if not _is_known(evidence, path)]
    if unknown:
        found.append(checks.warning(f"not of the run: {_names(unknown)}", "nobody reads them here"))
    pins = [step for step in commit.pinned(run) if not run.checkpoint(step).exists()]
    if pins:
        found.append(
            checks.warning(
                f"pins of checkpoints that are gone: {_names([str(pin) for pin in sorted(pins)])}",
                "andrectl cannot bring them back; remove the pins if that was meant",
            )
        )
    return found or checks.ok(f"{render.count(len(entries), 'name')}, each of them known")


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _wrong_kind(evidence: Evidence, path: Path) -> str | None:
    """Tell what `path` is where a regular file or a directory should be; None if all is well."""
    if path.name not in _fixed(evidence) and step_of(path.stem) is None:
        return None
    try:
        if path.name in _DIRECTORIES:
            return None if stat.S_ISDIR(path.stat().st_mode) else f"{path.name} is no directory"
        linked = path == evidence.run.settings  # the only link that is followed
        mode = (path.stat() if linked else path.lstat()).st_mode
        return None if stat.S_ISREG(mode) else f"{path.name} is not a regular file"
    except FileNotFoundError:
        return f"{path.name} is a link to nowhere" if path.is_symlink() else None


def _fixed(evidence: Evidence) -> set[str]:
    """Return every name that the layout gives to one path right in the run directory."""
    paths = (path for path in vars(evidence.run).values() if isinstance(path, Path))
    return {path.name for path in paths if path.parent == evidence.run.path}


def _is_known(evidence: Evidence, path: Path) -> bool:
    """Tell whether `path` is of the run: by its name, or because a source's text lies there."""
    name = path.name
    if name in _fixed(evidence) or TEMPORARY_INFIX in name or name.endswith(REJECTED_SUFFIX):
        return True
    if step_of(path.stem) is not None and path.suffix in (".bin", ".json"):
        return True
    return name in set(_inputs(evidence))


def _inputs(evidence: Evidence) -> Iterator[str]:
    """Yield the names in the run directory under which run.toml says that text lies."""
    if evidence.settings is None:
        return
    texts = [path for source in evidence.settings.sources for path in source.paths]
    for text in [*texts, evidence.settings.tokenizer.path]:
        path = Path(os.path.normpath(evidence.run.path / text))
        if path.is_relative_to(evidence.run.path) and path != evidence.run.path:
            yield path.relative_to(evidence.run.path).parts[0]


def pivot_in_flight(evidence: Evidence) -> Outcome:
    """Tell whether a pivot was begun and not ended."""
    journal = pivot.read(evidence.run)
    if journal is None:
        return checks.ok("none is in flight")
    committed = bool(evidence.policies) and journal.committed(evidence.policies or [])
    which = "the new policy" if committed else "the old policy"
    if lock.holder(evidence.run.pivot_lock) is not None:
        return checks.warning(f"one is being made just now; a start would run under {which}")
    return checks.warning(
        f"one was begun and not ended; a start would run under {which}",
        "andrectl pivot --resume goes on with it, andrectl pivot --abort gives it up",
    )


def disk(evidence: Evidence) -> Outcome:
    """Forecast whether what retention will keep fits on the disk."""
    if evidence.settings is None:
        return checks.skipped("run.toml cannot be read")
    free = shutil.disk_usage(evidence.run.path).free
    newest = evidence.newest
    n_params = newest.n_params if newest else evidence.settings.model.n_params
    image = checkpoint.file_size(n_params)
    steady = cost.cost(evidence.settings).checkpoints
    pins = [step for step in commit.pinned(evidence.run) if step in evidence.steps]
    more = max(0, steady + len(pins) - len(evidence.steps)) * image
    told = (
        f"{render.size(free)} free; retention will take {render.size(more)} more "
        f"({len(evidence.steps)} of about {steady + len(pins)} checkpoints are there)"
    )
    hint = "free some space, or lower keep_last and raise keep_every in run.toml"
    if free < image:
        return checks.failed(
            f"{told}: not even one checkpoint of {render.size(image)} fits", hint, errors.IO
        )
    return checks.warning(f"{told}: it will not fit", hint) if free < more else checks.ok(told)
