"""The order in which a checkpoint becomes durable, and the order in which old ones go.

    .bin to its preallocated temporary file, hashed alongside
    fsync .loss.json
    companion: temporary file, fsync, rename, directory fsync
    .bin: fsync, rename, directory fsync
    (the caller: .state.json, acknowledgement, then `prune`)

So a .bin under its final name has all it needs, durable. Prune goes in reverse: .bin, directory
fsync, companion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from andread.rundir import checkpoint, companion, files
from andread.rundir.companion import Companion
from andread.rundir.errors import DataError
from andread.rundir.history import LossHistory
from andread.rundir.layout import RunDirectory, step_of


def commit(
    run: RunDirectory,
    image: Sequence[memoryview | bytes],
    history: LossHistory,
    vouch: Callable[[str], Companion],
    beat: Callable[[], None] = lambda: None,
) -> Companion:
    """Make one checkpoint durable and return its companion.

    `image` is the file in pieces; `vouch` makes the companion from the file's SHA-256; `beat`
    is called after each chunk of them. Raises `OSError` if anything fails; no final name has
    changed then but perhaps the companion's. If only the last directory fsync failed, the .bin has
    its name too, whole, but not known to be durable.
    """
    size = sum(memoryview(piece).nbytes for piece in image)
    step, _ = checkpoint.HEADER.unpack(bytes(memoryview(image[0])[: checkpoint.HEADER.size]))
    digest = hashlib.sha256()
    with files.Staged(run.checkpoint(step), size) as staged:
        for piece in _chunks(image):
            staged.write(piece)
            digest.update(piece)
            beat()
        history.sync()
        made = vouch(digest.hexdigest())
        companion.write(run.companion(step), made)
        staged.commit()
    return made


def _chunks(image: Iterable[memoryview | bytes]) -> Iterable[memoryview]:
    """Yield `image` in pieces small enough to be hashed while they are warm."""
    for piece in image:
        view = memoryview(piece).cast("B")
        for start in range(0, len(view), files.CHUNK):
            yield view[start : start + files.CHUNK]


def pinned(run: RunDirectory) -> set[int]:
    """Return the steps whose checkpoints are pinned."""
    if not run.pins.is_dir():
        return set()
    steps = (step_of(entry.name) for entry in run.pins.iterdir())
    return {step for step in steps if step is not None}


def pin(run: RunDirectory, step: int) -> None:
    """Keep the checkpoint of `step` from retention."""
    files.make_directory(run.pins)
    if not run.pin(step).exists():
        files.replace(run.pin(step), b"")


def unpin(run: RunDirectory, step: int) -> None:
    """Leave the checkpoint of `step` to retention."""
    files.remove(run.pin(step))


def expendable(steps: Sequence[int], pins: set[int], keep_last: int, keep_every: int) -> list[int]:
    """Return which of the valid `steps` retention lets go, in rising order."""
    kept = set(sorted(steps)[-keep_last:]) | pins
    return [
        step
        for step in sorted(steps)
        if step not in kept and not (keep_every and step % keep_every == 0)
    ]


def prune(run: RunDirectory, step: int) -> None:
    """Delete one checkpoint, durably, so that no moment leaves a .bin without its companion."""
    files.remove(run.checkpoint(step))
    files.remove(run.companion(step))


def structurally_valid(run: RunDirectory, n_params: int) -> list[int]:
    """Return the steps whose checkpoint has the right size, header and companion, in order.

    The hash is not read: this is what retention counts, not what a resume trusts.
    """
    valid = []
    for step in run.checkpoint_steps():
        try:
            with files.opened(run.checkpoint(step)) as descriptor:
                header = checkpoint.read_header(descriptor, run.checkpoint(step))
            found = companion.read(run.companion(step))
        except (OSError, DataError):
            continue
        if (header.step, header.n_params, found.step) == (step, n_params, step):
            valid.append(step)
    return valid


def sweep(run: RunDirectory) -> list[str]:
    """Remove what a dead writer left: temporary files, and companions whose .bin is gone.

    Only the lock's owner may do so. Returns the names.
    """
    swept = files.sweep(run.path)
    for directory in (run.requests, run.pins, run.forks):
        if directory.is_dir():
            swept += files.sweep(directory)
    for path in sorted(run.path.glob("step_*.json")):
        ours = step_of(path.stem) is not None and (path.is_symlink() or not path.is_dir())
        if ours and not path.with_suffix(".bin").exists():
            files.remove(path)
            swept.append(path.name)
    return swept
