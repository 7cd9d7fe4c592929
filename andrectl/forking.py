"""The audit fork: a new run from a checkpoint of another, which trains on meanwhile.

    pin the checkpoint in the parent
    build INTO.tmp-XXXXXXXX/fork: checkpoint and tokens shared, the history copied, all verified
    rename it to INTO: the commit
    record it in the parent: forks/ID.json, and an event

So whatever interrupts it, INTO is a whole run or is not there, and what may be left is a directory
without a run.toml, which the next fork into the same place removes, and a pin.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from andread.rundir import (
    checkpoint,
    commit,
    companion,
    disk,
    events,
    files,
    history,
    lineage,
    manifest,
    policy,
    samples,
)
from andread.rundir.errors import AndreadError, DataError, MissingError, from_os_error
from andread.rundir.layout import TEMPORARY_INFIX, RunDirectory
from andread.rundir.lineage import Record
from andread.rundir.manifest import SPLITS
from andread.rundir.sharing import Transfer
from andrectl import render
from andrectl.branching import Plan

_INNER: Final = "fork"


class Vanished(MissingError):  # noqa: N818 - told as what happened
    """Retention was quicker than the pin."""


def fork(plan: Plan) -> Record:
    """Make the fork of `plan`; return its record.

    Raises `AndreadError`; then there is no fork, and the parent is as it was.
    """
    run, step = plan.run, plan.step
    _sweep(plan.into)
    held = True
    try:
        with _pinning(run):
            held = step in commit.pinned(run)
            commit.pin(run, step)
        _still_there(run, step)
        with _site(plan.into) as site:
            record = _build(plan, RunDirectory(site / _INNER))
            files.rename(site / _INNER, plan.into)
    except BaseException as error:
        if not held:
            with contextlib.suppress(OSError), _pinning(run):
                if not _recorded(run, step):  # another fork of this step needs the pin
                    commit.unpin(run, step)
        if isinstance(error, OSError):
            _still_there(run, step)
            raise from_os_error(error, "making the fork") from error
        raise
    _record(plan, record)
    return record


@contextlib.contextmanager
def _pinning(run: RunDirectory) -> Iterator[None]:
    """Keep other forks of `run` from pinning and unpinning meanwhile.

    A fork that fails takes its pin back unless a finished one of the step is on record. One that is
    still being built may lose the pin so, and sets it again at its end, or finds its step gone.
    """
    files.make_directory(run.pins)
    descriptor = os.open(run.pins, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _recorded(run: RunDirectory, step: int) -> bool:
    """Tell whether `run` has a fork of `step` on record; a damaged record may be one."""
    for path in lineage.forks(run):
        try:
            found = lineage.read(path)
        except DataError:
            return True
        if found is not None and found.step == step:
            return True
    return False


def _still_there(run: RunDirectory, step: int) -> None:
    """Raise `Vanished` if retention took the checkpoint before it was pinned."""
    if not files.exists(run.checkpoint(step)):
        raise Vanished(
            f"retention has just taken the checkpoint of step {step}",
            "fork at a newer one: andrectl checkpoints lists them",
        )


def leftovers(into: Path) -> list[Path]:
    """Return the building sites of interrupted forks into the same place."""
    return sorted(into.parent.glob(f"{_escaped(into.name)}{TEMPORARY_INFIX}????????"))


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "[*?" else c for c in name)


def _sweep(into: Path) -> None:
    """Remove what a dead fork into the same place left; a living one holds its site."""
    for path in leftovers(into):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            files.remove_tree(path)
            render.note(f"removed {path}, which an interrupted fork had left")
        except BlockingIOError:
            render.note(f"another fork into {into} is being made")
        except OSError as error:
            render.note(f"{path} was left by an interrupted fork: remove it ({error.strerror})")
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _site(into: Path) -> Iterator[Path]:
    """Make a directory beside `into` to build in, held while it lives; remove it at the end."""
    site = into.with_name(f"{into.name}{TEMPORARY_INFIX}{secrets.token_hex(4)}")
    disk.mkdir(site, 0o700)
    descriptor = os.open(site, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield site
    finally:
        with contextlib.suppress(OSError):
            files.remove_tree(site)
        os.close(descriptor)


def _build(plan: Plan, new: RunDirectory) -> Record:
    """Build the fork in `new`, all of it durable; return its record."""
    run, vouched = plan.run, plan.companion
    for folder in (new.path, new.data):
        files.make_directory(folder, exists_ok=False)
    shared = _transfer(plan, new)
    _verify(plan, new)
    own = dataclasses.replace(
        vouched, trajectory=plan.settings.trajectory(), reasons=("fork",), requests=()
    )
    companion.write(new.companion(plan.step), own)
    kept = history.copy_prefix(run.history, new.history, vouched.history_length)
    if kept != vouched.history_sha256:
        raise DataError(
            f"the loss history changed under {run.checkpoint(plan.step).name} while it was copied",
            "look at the run: andrectl status",
        )
    small = [(run.tokenizer, new.tokenizer)]
    small += [(run.manifest(name), new.manifest(name)) for name in plan.settings.source_names()]
    for source, target in small:
        files.replace(target, files.read_bytes(source, files.UNLIMITED))
    policy.write_policies(new.policy, plan.policies)
    _audits(plan, new)
    record = Record(
        id=lineage.new_id(),
        parent=str(run.path.resolve()),
        fork=str(plan.into),
        step=plan.step,
        sha256=vouched.sha256,
        history_length=vouched.history_length,
        history_sha256=vouched.history_sha256,
        policy=plan.policy.id,
        t=round(time.time(), 3),
        changes=tuple(plan.changes),
        shared=shared,
    )
    lineage.write(new.lineage, record)
    told = {"id": record.id, "parent": record.parent, "step": plan.step, "sha256": record.sha256}
    events.emit(new.events, "fork", **told, changes=plan.changes)
    files.replace(new.settings, plan.toml.encode())
    for folder in (new.data, new.path, new.path.parent):
        files.sync_directory(folder)
    return record


def _transfer(plan: Plan, new: RunDirectory) -> dict[str, str]:
    """Give the fork its large files, space first; return how each was given."""
    copies = _hashes(plan)
    with contextlib.ExitStack() as stack:
        transfers = {
            path: stack.enter_context(Transfer(plan.run.path / path, new.path / path))
            for path in plan.shared
        }
        for path, transfer in transfers.items():
            if transfer.how == "copy":
                render.note(f"copying {path} ({render.size(transfer.bytes)})")
            copied = transfer.finish()
            if copied is not None and copied != copies[path]:
                raise DataError(
                    f"{plan.run.path / path} is not what was recorded of it: its hash differs",
                    "restore it from a backup",
                )
        return {str(path): transfer.how for path, transfer in transfers.items()}


def _hashes(plan: Plan) -> dict[Path, str]:
    """Return the recorded SHA-256 of each large file."""
    run = plan.run
    found = {run.checkpoint(plan.step): plan.companion.sha256}
    for name in plan.settings.source_names():
        told = manifest.read_manifest(run.manifest(name))
        found |= {run.tokens(name, split): told.sha256(split) for split in SPLITS}
    return {path.relative_to(run.path): sha256 for path, sha256 in found.items()}


def _verify(plan: Plan, new: RunDirectory) -> None:
    """Read the fork's own checkpoint and compare; and the sizes of its tokens."""
    path = new.checkpoint(plan.step)
    if checkpoint.read_image(path, plan.step, plan.companion.n_params) != plan.companion.sha256:
        raise DataError(f"{path.name} is not what its companion says: its hash differs")
    for name in plan.settings.source_names():
        told = manifest.read_manifest(plan.run.manifest(name))
        for split in SPLITS:
            if (size := new.tokens(name, split).stat().st_size) != told.size(split):
                raise DataError(
                    f"{plan.run.tokens(name, split)} has {size:,} bytes, its manifest says "
                    f"{told.size(split):,}",
                    "restore it: the run itself could not start again without it",
                )


def _audits(plan: Plan, new: RunDirectory) -> None:
    """Carry the parent's audits up to the step, where they are of the policy that goes on."""
    try:
        content = samples.read(plan.run.samples)
    except DataError:
        return  # damaged: the fork audits anew
    if content["policy"] == plan.policy.id:
        past = [audit for audit in content["audits"] if audit["step"] <= plan.step]
        samples.write(new.samples, plan.policy.id, past)


def _record(plan: Plan, record: Record) -> None:
    """Record the fork in its parent; it is made, so trouble is told, no more."""
    run, step = plan.run, plan.step
    try:
        with _pinning(run):
            lineage.record_in_parent(run, record)
            if files.exists(run.checkpoint(step)):
                commit.pin(run, step)
            else:  # retention was quicker than the pin; the fork has its own
                commit.unpin(run, step)
        told = {"id": record.id, "path": record.fork, "step": step, "sha256": record.sha256}
        events.emit(run.events, "forked", **told, changes=plan.changes)
    except (AndreadError, OSError) as error:
        render.note(f"the fork is made, but could not be recorded in {run.path}: {error}")
