"""Judge the machine and the unit: whether a run can be trained here for a month."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from andread.rundir.errors import OK
from andrectl import checks, render, selection
from andrectl.doctor.patient import Patient

_HOUR = 3600.0


@click.command(params=[selection.option(resolve=False)])
@click.option(
    "--mtbf",
    type=click.FloatRange(min=0, min_open=True),
    metavar="HOURS",
    default=168.0,
    show_default=True,
    help="Assume that the machine fails once in this time: what the best cadence rests on.",
)
@click.option(
    "--no-write", is_flag=True, help="Write nothing: leave out what is tried and measured on disk."
)
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
@click.pass_context
def command(ctx: click.Context, mtbf: float, no_write: bool, as_json: bool) -> None:
    """Judge the machine and the unit: whether a run can be trained here for a month.

    With a run, selected as for every command, its needs are what the machine, the disk, the unit
    and the log-out rules are judged by; where none is named or found, the machine alone. The run
    may train meanwhile: nothing of it is changed, and no more than 64 MB are written beside it for
    a moment.

    Exits 0 if nothing has failed, else with the code of the first check that has: 71 for memory
    or a torch that cannot be used, 74 for the disk, 75 for an absent device, 77 for a run of
    another owner, 78 for settings. Warnings are no failure.
    """
    from andrectl import doctor
    from andrectl.doctor import patient

    run = selection.perhaps(ctx)
    place = run.path if run is not None else _place()
    met = patient.meet(run, place, mtbf * _HOUR)
    outcomes = doctor.examine(met, write=not no_write)
    code = checks.exit_code(outcomes)
    if as_json:
        about = {"run": str(run.path) if run is not None else None, "place": str(place)}
        render.json({**about, "measured": _measured(met), **checks.payload(outcomes)})
    else:
        click.echo(checks.text(outcomes))
        render.note(checks.summary(outcomes))
        render.next_step(_next(met, code))
    ctx.exit(code)


def _place() -> Path:
    """Return where a run would be: under the state directory, else here."""
    state = selection.state_directory({})
    return state if state.is_dir() else Path.cwd()


def _measured(met: Patient) -> dict[str, Any]:
    """Return the figures that the checks rest on, in seconds and bytes."""
    return {
        "step_seconds": met.pace.step,
        "slowest_step_seconds": met.pace.slowest,
        "checkpoint_seconds": met.pace.write,
        "stall_seconds": met.pace.stall,
        "disk_bytes_per_second": round(met.speed) or None,
        "mtbf_seconds": met.mtbf,
    }


def _next(met: Patient, code: int) -> str:
    """Return the next useful command."""
    if code != OK:
        return "mend what has failed, then andrectl doctor again"
    if met.run is None:
        return "andrectl init makes a run; andrectl doctor --run DIR judges one"
    return "andrectl status" if met.pid else "andrectl start"
