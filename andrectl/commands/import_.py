"""Begin a run from another engine's bare checkpoint."""

from __future__ import annotations

import mmap
import time
from pathlib import Path

import click

from andread.rundir import checkpoint, commit, events, files, run_toml
from andread.rundir.checkpoint import InvalidCheckpoint
from andread.rundir.companion import Companion
from andread.rundir.errors import ExistsError
from andread.rundir.history import CLOSING, OPENING, LossHistory
from andread.rundir.layout import RunDirectory
from andread.rundir.lock import RunLock
from andread.rundir.settings import Settings
from andrectl import render


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the new checkpoint as JSON.")
@click.pass_obj
def command(run: RunDirectory, file: Path, as_json: bool) -> None:
    """Begin a run from another engine's bare checkpoint.

    FILE holds step, number of parameters, weights, m and v: 8 + 12n bytes. It becomes the first
    checkpoint of a run that has a run.toml but no past yet. The bandit starts fresh, the loss
    history starts empty behind FILE's step, and hyperparameters come from run.toml. The tokenizer
    must be the one that FILE was trained with: name it in run.toml before the first prepare.
    """
    made = run_toml.read_settings(run.settings)
    with RunLock.acquire(run.lock):
        _refuse_past(run)
        vouched = _import(run, made, file.resolve())
    path = run.checkpoint(vouched.step)
    size = checkpoint.file_size(vouched.n_params)
    if as_json:
        answer = {"step": vouched.step, "path": str(path), "bytes": size, "sha256": vouched.sha256}
        render.json({"run": str(run.path), "parameters": vouched.n_params, **answer})
    else:
        click.echo(
            f"{path}: step {vouched.step:,}, {vouched.n_params:,} parameters, {size:,} bytes"
        )
        click.echo(f"sha256 {vouched.sha256}")
    render.note("the bandit starts fresh; batch, learning rate and schedule come from run.toml")
    render.note("the tokenizer must be the checkpoint's own: [tokenizer] path in run.toml names it")
    if vouched.step >= made.run.steps:
        render.note(f"[run] steps = {made.run.steps:,} is behind it: raise it before you start")
    render.next_step("andrectl start")


def _refuse_past(run: RunDirectory) -> None:
    """Raise `ExistsError` if the run has checkpoints or recorded steps."""
    empty = len(OPENING + CLOSING)
    recorded = (files.size(run.history) or 0) > empty
    if recorded or run.checkpoint_steps():
        what = "a loss history" if recorded else "checkpoints"
        raise ExistsError(
            f"{run.path} has {what} already: an import would replace its past",
            "import into a new run: andrectl init DIR, then andrectl --run DIR import FILE",
        )


def _import(run: RunDirectory, made: Settings, file: Path) -> Companion:
    """Copy `file` into the run as its first checkpoint, in the order of every commit."""
    with files.opened(file) as descriptor:
        header = checkpoint.read_header(descriptor, file)
        if not made.model.factory and header.n_params != made.model.n_params:
            raise InvalidCheckpoint(
                f"{file.name} has {header.n_params:,} parameters, the model of run.toml has "
                f"{made.model.n_params:,}",
                "choose the preset or the shape that it was trained with",
            )
        history = LossHistory.create(run.history, header.step)
        started = time.monotonic()
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as image, memoryview(image) as view:
            vouched = commit.commit(
                run, view, history, lambda sha256: _vouch(header, sha256, history, made)
            )
        history.close()
    events.emit(
        run.events,
        "checkpoint",
        step=vouched.step,
        path=run.checkpoint(vouched.step).name,
        bytes=checkpoint.file_size(vouched.n_params),
        sha256=vouched.sha256,
        reasons=list(vouched.reasons),
        seconds=round(time.monotonic() - started, 3),
        steps_per_minute=None,
    )
    return vouched


def _vouch(
    header: checkpoint.Header, sha256: str, history: LossHistory, made: Settings
) -> Companion:
    """Return the companion of an imported checkpoint: no curriculum, no environment."""
    return Companion(
        step=header.step,
        n_params=header.n_params,
        sha256=sha256,
        history_length=history.prefix.length,
        history_sha256=history.prefix.sha256,
        policy="",
        reasons=("import",),
        t=time.time(),
        trajectory=made.trajectory(),
    )
