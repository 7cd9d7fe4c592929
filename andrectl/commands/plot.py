"""Draw one run or several: as a file, or in the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from andread.rundir.errors import MissingError, UsageError
from andread.rundir.layout import RunDirectory
from andrectl import curves, ownership, render, selection
from andrectl.curves import Curves


@click.command(params=[selection.option(resolve=False)])
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the picture to this .png or .svg; one that is there is replaced.",
)
@click.option("--terminal", is_flag=True, help="Draw it with characters, here.")
@click.option("--log", is_flag=True, help="The loss on a logarithmic scale.")
@click.option("--since", type=click.IntRange(1), metavar="STEP", default=1, help="First step.")
@click.option("--until", type=click.IntRange(1), metavar="STEP", help="Last step.")
@click.option(
    "--average",
    type=click.IntRange(1),
    metavar="STEPS",
    help="How far the moving average of the loss looks back.  [default: by length]",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was drawn as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    runs: tuple[str, ...],
    out: Path | None,
    terminal: bool,
    log: bool,
    since: int,
    until: int | None,
    average: int | None,
    as_json: bool,
) -> None:
    """Draw one run or several: as a file, or in the terminal.

    Loss with its moving average, validation loss, learning rate, gradient norm, and what each
    source got of the pulls against its cap and floor; pivots, forks, restarts, spikes and faults
    are marked. Several runs, named by their directories, lie over one another.

    --out needs matplotlib (pip install 'andread[plot]'), --terminal plotext ('andread[terminal]').
    """
    if out is None and not terminal:
        raise UsageError("neither --out nor --terminal is given", "andrectl plot --out run.png")
    if out is not None and out.suffix.lower() not in (".png", ".svg"):
        raise UsageError(f"{out} is neither a .png nor a .svg", "name the picture so")
    if until is not None and until < since:
        raise UsageError(f"--until {until} lies before --since {since}", "exchange them")
    chosen = [_named(run) for run in runs] or [selection.chosen(ctx)]
    found = [curves.curves(run, since, until, average) for run in chosen]
    if not any(each.steps for each in found):
        where = ", ".join(str(each.run.path) for each in found)
        raise MissingError(f"there is no recorded step to draw in {where}", "andrectl start")
    if terminal:
        from andrectl import terminal as characters

        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        width = shutil.get_terminal_size((100, 40)).columns
        click.echo(characters.draw(found, width, color, log), color=color)
    if out is not None:
        from andrectl import picture

        picture.save(picture.draw(found, log), out)
        if not as_json:
            click.echo(str(out))
    if as_json:
        render.json({"out": str(out) if out else None, "runs": [_json(each) for each in found]})
    render.next_step("andrectl export --to csv gives the figures themselves")


def _named(given: str) -> RunDirectory:
    """Return the run in the directory that an argument names."""
    run = RunDirectory(Path(given))
    if not run.exists():
        raise MissingError(f"{given} is no run directory: it has no run.toml", "check the path")
    ownership.adopt(run.path)
    return run


def _json(drawn: Curves) -> dict[str, object]:
    """Return what was drawn of one run."""
    return {
        "run": str(drawn.run.path),
        "first": drawn.first,
        "last": drawn.last,
        "steps_a_point": drawn.width,
        "average": drawn.horizon,
        "marks": [vars(mark) for mark in drawn.marks],
    }
