"""Which checkpoint a run resumes from, and what its history says beyond it.

Candidates are taken from the newest down: size, header, companion, hash, and a history that is
at least as long as vouched. What fails is rejected with its reason; trouble with reading (EIO,
EACCES, ENOMEM) is no verdict on a file and stops the search.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from andread.rundir import checkpoint, companion, files, history
from andread.rundir.checkpoint import InvalidCheckpoint
from andread.rundir.companion import Companion
from andread.rundir.errors import DataError, MissingError, from_os_error
from andread.rundir.history import LossHistory
from andread.rundir.layout import REJECTED_SUFFIX, RunDirectory

Reader = Callable[[Path, Companion], str]
"""Reads a .bin where it belongs and returns its SHA-256; raises `InvalidCheckpoint`."""


@dataclass(frozen=True)
class Rejected:
    """A checkpoint that is no candidate any more, and why."""

    step: int
    reason: str


@dataclass(frozen=True)
class Recovered:
    """The newest valid checkpoint and what was passed over on the way to it."""

    companion: Companion
    rejected: tuple[Rejected, ...]
    history_length: int
    history_fault: str
    """Why the history is not what the checkpoint vouches for; empty unless it was accepted."""


def newest_valid(
    run: RunDirectory, n_params: int, reader: Reader, accept_history: bool = False
) -> Recovered | None:
    """Read the newest valid checkpoint with `reader`; None if the run has not begun.

    Raises `DataError` if checkpoints or a history exist and none of them will do, or if the
    history is long enough but not what the checkpoint vouches for, unless `accept_history`.
    Changes nothing: `set_aside` renames what was rejected.
    """
    rejected: list[Rejected] = []
    try:
        steps = run.checkpoint_steps()
        for step in reversed(steps):
            try:
                found = _candidate(run, step, n_params, reader)
            except InvalidCheckpoint as verdict:
                rejected.append(Rejected(step, verdict.message))
                continue
            length, fault = _vouched_history(run, found, accept_history)
            return Recovered(found, tuple(rejected), length, fault)
        begun = bool(steps) or _has_entries(run.history)
    except OSError as error:
        raise from_os_error(error, "reading the newest checkpoint") from error
    if not begun:
        return None
    reasons = "; ".join(item.reason for item in rejected) or "there is none"
    raise DataError(
        f"no checkpoint of {run.path} can be resumed from: {reasons}",
        "restore one from a backup; a run that has a past never restarts from zero by itself",
    )


def valid_at(run: RunDirectory, step: int) -> Companion:
    """Return the companion of the checkpoint of `step`, read and found valid.

    Raises `MissingError` if there is no such checkpoint, `DataError` if it is not valid or the
    history is not what it vouches for, and what `from_os_error` makes of trouble with reading.
    """
    try:
        if not files.exists(run.checkpoint(step)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), run.checkpoint(step))
        try:
            n_params = companion.read(run.companion(step)).n_params
        except (FileNotFoundError, DataError):
            n_params = 0  # `_candidate` says so
        found = _candidate(run, step, n_params, verified_reader)
        _vouched_history(run, found, accept=False)
    except FileNotFoundError:
        steps = ", ".join(map(str, run.checkpoint_steps()[-8:])) or "none"
        raise MissingError(
            f"there is no checkpoint of step {step}", f"the newest ones: {steps}"
        ) from None
    except OSError as error:
        raise from_os_error(error, f"reading the checkpoint of step {step}") from error
    return found


def newest_companion(run: RunDirectory) -> Companion | None:
    """Return the companion of the newest checkpoint that has a readable one, unverified.

    It tells what the run was before an engine is built to read the checkpoint itself.
    """
    try:
        for step in reversed(run.checkpoint_steps()):
            try:
                return companion.read(run.companion(step))
            except (FileNotFoundError, DataError):
                continue
    except OSError as error:
        raise from_os_error(error, "reading the newest companion") from error
    return None


def _candidate(run: RunDirectory, step: int, n_params: int, reader: Reader) -> Companion:
    """Return the companion of the valid checkpoint of `step`, or raise `InvalidCheckpoint`."""
    path = run.checkpoint(step)
    try:
        found = companion.read(run.companion(step))
    except FileNotFoundError:
        raise InvalidCheckpoint(f"{path.name} has no companion") from None
    except DataError as error:
        raise InvalidCheckpoint(f"{path.name} has a damaged companion: {error}") from None
    if found.step != step or found.n_params != n_params:
        raise InvalidCheckpoint(
            f"{path.name}: its companion is of step {found.step} and {found.n_params:,} parameters"
            f", not of step {step} and {n_params:,}"
        )
    try:
        digest = reader(path, found)
    except InvalidCheckpoint:
        raise
    except DataError as error:
        raise InvalidCheckpoint(error.message) from None
    if digest != found.sha256:
        raise InvalidCheckpoint(
            f"{path.name} has SHA-256 {digest[:12]}…, its companion says {found.sha256[:12]}…"
        )
    length = files.size(run.history)
    if length is None or length < found.history_length:
        raise InvalidCheckpoint(
            f"{path.name}: the loss history is shorter than the {found.history_length:,} bytes "
            "that it vouches for"
        )
    return found


def _vouched_history(run: RunDirectory, found: Companion, accept: bool) -> tuple[int, str]:
    """Return the length of the history up to `found`, and its fault if there is one."""
    digest = history.prefix_sha256(run.history, found.history_length)
    if digest == found.history_sha256:
        return found.history_length, ""
    fault = (
        f"the first {found.history_length:,} bytes of {run.history.name} are not those that "
        f"{run.checkpoint(found.step).name} vouches for (SHA-256 {(digest or '')[:12]}… instead of "
        f"{found.history_sha256[:12]}…)"
    )
    if not accept:
        raise DataError(
            f"{fault}: the record was changed after it was written",
            "restore the file from a backup, or go on with it as it is: "
            "andrectl start --accept-history records the fault and edits nothing",
        )
    end = history.end_of_step(run.history, found.step)
    if end is None:
        raise DataError(
            f"{fault}, and there is no entry of step {found.step} in it to go on from",
            "restore the file from a backup",
        )
    return end, fault


def _has_entries(path: Path) -> bool:
    """Tell whether a history holds anything beyond its brackets."""
    empty = len(history.OPENING + history.CLOSING)
    return (files.size(path) or 0) > empty


def open_history(run: RunDirectory, recovered: Recovered) -> tuple[LossHistory, int]:
    """Take the history up behind `recovered`; return it and the bytes of torn end cut off."""
    return LossHistory.resume(run.history, recovered.companion.step, recovered.history_length)


def set_aside(run: RunDirectory, rejected: Rejected) -> None:
    """Rename a rejected checkpoint and its companion, so that it never wins or counts again."""
    for path in (run.checkpoint(rejected.step), run.companion(rejected.step)):
        if files.exists(path, follow=False):
            files.rename(path, path.with_name(path.name + REJECTED_SUFFIX))


def verified_reader(path: Path, found: Companion) -> str:
    """Check a checkpoint without keeping its content: a `Reader` for tools."""
    return checkpoint.read_image(path, found.step, found.n_params)
