"""Tell how the run is doing."""

from __future__ import annotations

import sys
import time
from typing import Final

import click

from andread.rundir.errors import OK, STOPPED, UNKNOWN, AndreadError, from_os_error
from andread.rundir.layout import RunDirectory
from andrectl import cli, overview_text, render, selection
from andrectl.loose import Table
from andrectl.overview import overview

_EXIT: Final = {"running": OK, "stopped": STOPPED, "never started": STOPPED, "unknown": UNKNOWN}


@click.command(params=[selection.option(resolve=False)])
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    default=2.0,
    show_default=True,
    help="Between two looks of --watch.",
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON; with --watch a line each.")
@click.pass_context
def command(ctx: click.Context, watch: bool, interval: float, as_json: bool) -> None:
    """Tell how the run is doing.

    Exits 0 if the run is running, 3 if it is stopped, 4 if there is no such run or its state
    cannot be told. Damaged files are named; they never keep the rest from being shown.
    """
    try:
        run = selection.chosen(ctx)
        if watch:
            _watch(run, interval, as_json)
            return
        view = overview(run)
    except AndreadError as error:
        cli.tell(error)
        ctx.exit(UNKNOWN)
    except OSError as error:
        cli.tell(from_os_error(error, "reading the run directory"))
        ctx.exit(UNKNOWN)
    if as_json:
        render.json(view)
    else:
        click.echo(overview_text.text(view))
        render.next_step(_next(view))
    ctx.exit(_EXIT[view["state"]])


def _next(view: Table) -> str:
    """Return the next useful command."""
    if view["pivot"] and not view["pivot"]["pid"]:
        return "andrectl pivot --resume goes on with the pivot that is pending, --abort gives it up"
    if view["state"] == "running":
        return "andrectl samples shows what it writes; andrectl snapshot keeps this moment"
    if view["state"] == "unknown":
        return "ask as the owner of the run, or as root"
    if view["pivot"]:
        return "andrectl status --watch: the pivot in flight is about to start the run"
    if view["prepared"] is False:
        return "andrectl prepare"
    if view["finished"]:
        return "andrectl samples; to go on, raise [run] steps in run.toml and andrectl start"
    return "andrectl start"


def _watch(run: RunDirectory, interval: float, as_json: bool) -> None:
    """Show the overview again and again, until interrupted."""
    try:
        if as_json or not sys.stdout.isatty():
            _repeat(run, interval, as_json)
        else:
            _live(run, interval)
    except KeyboardInterrupt:
        return


def _repeat(run: RunDirectory, interval: float, as_json: bool) -> None:
    """Print one overview after the other."""
    while True:
        view = overview(run)
        if as_json:
            render.json(view, compact=True)
        else:
            click.echo(overview_text.text(view) + "\n")
        time.sleep(interval)


def _live(run: RunDirectory, interval: float) -> None:
    """Redraw the overview in place."""
    from rich.live import Live  # a tenth of a second to import, which only this view pays
    from rich.text import Text

    def draw() -> Text:
        text = overview_text.text(overview(run))
        return Text.from_ansi(text, no_wrap=True, overflow="ellipsis")

    with Live(draw(), auto_refresh=False, screen=False) as live:
        while True:
            time.sleep(interval)
            live.update(draw(), refresh=True)
