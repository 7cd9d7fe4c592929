"""The order in which a checkpoint becomes durable, and the order in which old ones go.

    .bin to its preallocated temporary file, hashed alongside
    fsync .loss.json, and .events.json
    companion: temporary file, fsync, rename, directory fsync
    .bin: fsync, rename, directory fsync
    (the caller: .state.json, acknowledgement, then `prune`)

So a .bin under its final name has all it needs, durable. Prune goes in reverse: .bin, directory
fsync, companion.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from andread.rundir import checkpoint, companion, events, files
from andread.rundir.companion import Companion
from andread.rundir.errors import DataError
from andread.rundir.hashing import ThreadedHash
from andread.rundir.history import LossHistory
from andread.rundir.layout import RunDirectory, step_of


def commit(
    run: RunDirectory,
    image: memoryview | bytes,
    history: LossHistory,
    vouch: Callable[[str], Companion],
    beat: Callable[[], None] = lambda: None,
) -> Companion:
    """Make one checkpoint durable and return its companion.

    `image` is the whole file, at best page-aligned as `Staging.file` is; `vouch` makes the
    companion from its SHA-256; `beat` is called after each chunk of it. Raises `OSError` if
    anything fails; no final name has changed then but perhaps the companion's. If only the last
    directory fsync failed, the .bin has its name too, whole, but not known to be durable.
    """
    image = memoryview(image)
    step, _ = checkpoint.HEADER.unpack(image[: checkpoint.HEADER.size])
    with files.Staged(run.checkpoint(step), len(image)) as staged, ThreadedHash() as digest:
        digest.update(image)
        staged.write_direct(image, beat)
        sha256 = digest.hexdigest(beat)
        history.sync()
        with contextlib.suppress(OSError, DataError):  # the start that this follows, for the proof
            events.sync(run.events)  # of a pivot; it is no reason to go without a checkpoint
        made = vouch(sha256)
        companion.write(run.companion(step), made)
        staged.commit()
    return made


def pinned(run: RunDirectory) -> set[int]:
    """Return the steps whose checkpoints are pinned."""
    steps = map(step_of, files.names(run.pins))
    return {step for step in steps if step is not None}


def pin(run: RunDirectory, step: int) -> None:
    """Keep the checkpoint of `step` from retention."""
    files.make_directory(run.pins)
    if not files.exists(run.pin(step)):
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


def prune(run: RunDirectory, step: int) -> bool:
    """Delete one checkpoint, durably, so that no moment leaves a .bin without its companion.

    False if it is pinned: a person may be quicker than the deletion of others before it.
    """
    if files.exists(run.pin(step)):
        return False
    files.remove(run.checkpoint(step))
    files.remove(run.companion(step))
    return True


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

    What it had renamed and did not live to sync is durable afterwards, so that it may be built and
    vouched upon. Only the lock's owner may do so. Returns the names.
    """
    swept = files.sweep(run.path)
    for directory in (run.requests, run.pins, run.forks):
        if files.is_directory(directory):
            swept += files.sweep(directory)
    for name in files.names(run.path):
        path = run.path / name
        ours = path.suffix == ".json" and step_of(path.stem) is not None
        ours = ours and not files.is_directory(path, follow=False)
        if ours and not files.exists(path.with_suffix(".bin")):
            files.remove(path)
            swept.append(name)
    for directory in (run.path, run.pins):
        if files.is_directory(directory):
            files.sync_directory(directory)
    return swept
