"""Every name in a run directory, in one place.

    run.toml                what the run is; written by a person or `andrectl init`
    policy.json             list of policies by step
    tokenizer.json          the run's tokenizer
    data/                   NAME.train.bin, NAME.validation.bin and NAME.json for each source;
                            NAME.*.partial while they are being prepared
    step_NNNNNN.bin         a checkpoint: exactly 8 + 12n bytes; six digits or more
    step_NNNNNN.json        its companion
    .loss.json              the loss history: one entry per step, never archived or rewritten
    .samples.json           recent audits
    .state.json             the curriculum as of the last checkpoint, for people
    .events.json            JSON lines: what happened
    .lock                   record lock of the process that owns the run
    .pivot.lock             record lock of the pivot in flight
    .pivot.json             journal of the pivot in flight
    requests/ID.json        what a SIGUSR1 asks for beyond the default
    pins/step_NNNNNN        checkpoints that retention must keep
    .lineage.json           in a fork: the run and the step that it comes from
    forks/ID.json           forks that were made of this run
    archive/pivot_NNNNNN/   archived sidecars and the manifest of a pivot
    andread.log             stderr of a daemon that `andrectl start` detached

`NAME.tmp-*` is a file not yet committed, `….rejected` a checkpoint found invalid.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from andread.rundir import disk

_STEP: Final = re.compile(r"step_([0-9]{6}|[1-9][0-9]{6,})")
TEMPORARY_INFIX: Final = ".tmp-"
REJECTED_SUFFIX: Final = ".rejected"


class RunDirectory:
    """The paths of one run directory. Knows names, touches no file but to list checkpoints."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.settings = self.path / "run.toml"
        self.policy = self.path / "policy.json"
        self.tokenizer = self.path / "tokenizer.json"
        self.data = self.path / "data"
        self.data_lock = self.data / ".lock"
        self.history = self.path / ".loss.json"
        self.samples = self.path / ".samples.json"
        self.state = self.path / ".state.json"
        self.events = self.path / ".events.json"
        self.lock = self.path / ".lock"
        self.pivot_lock = self.path / ".pivot.lock"
        self.pivot = self.path / ".pivot.json"
        self.requests = self.path / "requests"
        self.pins = self.path / "pins"
        self.lineage = self.path / ".lineage.json"
        self.forks = self.path / "forks"
        self.archive = self.path / "archive"
        self.log = self.path / "andread.log"

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    def exists(self) -> bool:
        """Tell whether this is a run directory: whether it has a run.toml."""
        return self.settings.is_file()

    def checkpoint(self, step: int) -> Path:
        """Return the path of the checkpoint of `step`."""
        return self.path / f"{step_name(step)}.bin"

    def companion(self, step: int) -> Path:
        """Return the path of the companion of `step`."""
        return self.path / f"{step_name(step)}.json"

    def pin(self, step: int) -> Path:
        """Return the path of the pin of `step`."""
        return self.pins / step_name(step)

    def request(self, request_id: str) -> Path:
        """Return the path of a request."""
        return self.requests / f"{request_id}.json"

    def fork(self, fork_id: str) -> Path:
        """Return the path of what is recorded of a fork that was made of this run."""
        return self.forks / f"{fork_id}.json"

    def tokens(self, source: str, split: str) -> Path:
        """Return the tokens of `source`; `split` is "train" or "validation"."""
        return self.data / f"{source}.{split}.bin"

    def manifest(self, source: str) -> Path:
        """Return the fingerprint and counts of the tokens of `source`."""
        return self.data / f"{source}.json"

    def partial(self, source: str, kind: str) -> Path:
        """Return a file of an unfinished preparation; `kind` is a split, or "journal"."""
        return self.data / f"{source}.{kind}.partial"

    def checkpoint_steps(self) -> list[int]:
        """Return the steps that have a checkpoint file, in rising order, as numbers."""
        names = disk.listdir(self.path)
        steps = (step_of(name.removesuffix(".bin")) for name in names if name.endswith(".bin"))
        return sorted(step for step in steps if step is not None)


def step_name(step: int) -> str:
    """Return `step_NNNNNN`, of six digits or more."""
    return f"step_{step:06d}"


def step_of(name: str) -> int | None:
    """Return the step whose `step_name` is `name`, None if it is no such name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None
