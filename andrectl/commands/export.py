"""Give the loss history, with its events, to other tools."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from andread.rundir.errors import ExistsError, MissingError, UsageError, from_os_error
from andread.rundir.layout import RunDirectory
from andrectl import exporting, render

_READERS: Final = {
    "tensorboard": "tensorboard --logdir {out}",
    "csv": "any spreadsheet, or pandas.read_csv",
    "jsonl": 'jq, or one JSON object a line: "kind" is step or event',
}


@click.command()
@click.option(
    "--to",
    "form",
    type=click.Choice(list(_READERS)),
    required=True,
    help="csv: a row a step. jsonl: steps and events. tensorboard: an event file.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The file, for tensorboard the directory. csv and jsonl go to stdout without it.",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
@click.pass_obj
def command(run: RunDirectory, form: str, out: Path | None, force: bool, as_json: bool) -> None:
    """Give the loss history, with its events, to other tools.

    Every recorded step is there: one that was not applied has no loss. The pulls of each source
    and the validation losses of the audits are columns of their own.

    tensorboard needs tensorboardX (pip install 'andread[tensorboard]'), and holds 32-bit floats.
    """
    if not run.history.is_file():
        raise MissingError(f"{run.path} has no loss history yet", "andrectl start")
    if form == "tensorboard":
        steps, told = _directory(run, out)
    elif out is None:
        if as_json:
            raise UsageError("--json tells of a file, and none is named", "add --out FILE")
        steps, told = _stdout(run, form)
    else:
        steps, told = _file(run, form, out, force)
    if as_json:
        render.json(
            {"run": str(run.path), "to": form, "out": str(out), "steps": steps, "events": told}
        )
    render.note(f"{render.count(steps, 'step')}, {render.count(told, 'event')}")
    render.next_step(_READERS[form].format(out=out))


def _directory(run: RunDirectory, out: Path | None) -> tuple[int, int]:
    """Write an event file into a directory that has none: a second one would double the curves."""
    if out is None:
        raise UsageError("TensorBoard reads a directory", "add --out DIR")
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any("tfevents" in path.name for path in out.iterdir()):
            raise ExistsError(f"{out} holds an event file already", "name another directory")
        return exporting.to_tensorboard(run, out)
    except OSError as error:
        raise from_os_error(error, "writing the export") from error


def _stdout(run: RunDirectory, form: str) -> tuple[int, int]:
    try:
        if form == "csv":
            return exporting.to_csv(run, sys.stdout)
        found = exporting.to_jsonl(run, sys.stdout.buffer)
        sys.stdout.flush()
        return found
    except BrokenPipeError:  # as behind `| head`: whoever reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


def _file(run: RunDirectory, form: str, out: Path, force: bool) -> tuple[int, int]:
    """Write beside the name and rename at the end: an interrupted export leaves none."""
    if out.exists() and not force:
        raise ExistsError(f"{out} is there already", "name another file, or add --force")
    staged = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        if form == "csv":
            with staged.open("w", encoding="utf-8", newline="") as text:
                found = exporting.to_csv(run, text)
        else:
            with staged.open("wb") as stream:
                found = exporting.to_jsonl(run, stream)
        staged.replace(out)
    except OSError as error:
        raise from_os_error(error, "writing the export") from error
    finally:
        staged.unlink(missing_ok=True)
    return found
