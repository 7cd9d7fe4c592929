"""Prove that the run can be resumed, before that is needed."""

from __future__ import annotations

from pathlib import Path

import click

from andread.rundir.errors import OK, UsageError
from andread.rundir.layout import RunDirectory
from andrectl import checks, render
from andrectl.checks import Check


@click.command()
@click.option("--deep", is_flag=True, help="Read every byte of every checkpoint and of the tokens.")
@click.option(
    "--replay",
    type=click.IntRange(1),
    metavar="K",
    help="Compute K recorded steps again, in a scratch copy, and compare.",
)
@click.option(
    "--from",
    "start",
    type=click.IntRange(0),
    metavar="STEP",
    help="With --replay: from this checkpoint, not the newest one with steps after it.",
)
@click.option(
    "--scratch",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="With --replay: make the copy under DIR, not beside the run.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="With --replay: compute on this kind of device, not the recorded one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    deep: bool,
    replay: int | None,
    start: int | None,
    scratch: Path | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Prove that the run can be resumed, before that is needed.

    Changes nothing and takes no lock; the run may train meanwhile. Without --deep it reads sizes,
    headers, companions and the whole loss history, in seconds.

    --replay starts a real daemon on a copy (shared where it can be) and compares losses, pulls
    and, where the run has one, the checkpoint at the end, bit for bit.

    Exits 0 if every check passed, else with the code of the first that failed: 65 for damage, 66
    for what is missing, 78 for settings that contradict the past. Warnings are no failure.
    """
    from andrectl import verifying

    run: RunDirectory = ctx.obj
    if replay is None and (start is not None or scratch is not None or device is not None):
        raise UsageError("--from, --scratch and --device go with --replay", "add --replay K")
    looks = verifying.checks(run, deep)
    if replay is not None:
        from andrectl.verifying.replay import Replay

        again = Replay(run, replay, start, scratch, device)
        looks.append(Check("replay", again.look))
    outcomes = checks.perform(looks)
    code = checks.exit_code(outcomes)
    if as_json:
        render.json({"run": str(run.path), "deep": deep, **checks.payload(outcomes)})
    else:
        click.echo(checks.text(outcomes))
        render.note(checks.summary(outcomes))
        render.next_step(_next(code, deep, replay))
    ctx.exit(code)


def _next(code: int, deep: bool, replay: int | None) -> str:
    """Return the next useful command."""
    if code != OK:
        return "docs/operations.md tells what to do for each check; verify again afterwards"
    if not deep:
        return "andrectl verify --deep reads every byte"
    if replay is None:
        return "andrectl verify --replay 10 computes recorded steps again"
    return "andrectl status"
