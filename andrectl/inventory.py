"""The checkpoints of a run directory as a reader finds them: no hash is computed here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from andread.rundir import checkpoint, commit, companion, files
from andread.rundir.companion import Companion
from andread.rundir.layout import REJECTED_SUFFIX, RunDirectory
from andrectl.loose import Reader


@dataclass(frozen=True)
class Entry:
    """One checkpoint file, with its companion if that can be read."""

    step: int
    bytes: int
    pinned: bool
    companion: Companion | None
    problem: str
    """Why it could not be resumed from, as far as header, size and companion tell."""


def entries(run: RunDirectory) -> list[Entry]:
    """Return every checkpoint of `run`, in rising order; pruned in between, it is left out."""
    pins = commit.pinned(run)
    found = (entry(run, step, pins) for step in run.checkpoint_steps())
    return [item for item in found if item is not None]


def entry(run: RunDirectory, step: int, pins: Iterable[int]) -> Entry | None:
    """Return the checkpoint of `step`, None if there is no such file."""
    reader = Reader()
    path, beside = run.checkpoint(step), run.companion(step)
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return None

    def header() -> checkpoint.Header:
        with files.opened(path) as descriptor:
            return checkpoint.read_header(descriptor, path)

    head = reader.attempt(path, header)
    vouched = reader.attempt(beside, lambda: companion.read(beside))
    problem = "; ".join(f"{item['file']}: {item['problem']}" for item in reader.damaged)
    if not problem and vouched is None:
        problem = "it has no companion"
    if not problem and head and vouched and (head.step, vouched.step) != (step, step):
        problem = f"its header says step {head.step}, its companion step {vouched.step}"
    return Entry(step, size, step in pins, vouched, problem)


def rejected(run: RunDirectory) -> list[str]:
    """Return the names of the checkpoints that were set aside as invalid."""
    suffix = ".bin" + REJECTED_SUFFIX
    return sorted(path.name for path in run.path.iterdir() if path.name.endswith(suffix))
