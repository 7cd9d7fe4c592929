"""Stop the daemon at its next step boundary, on a checkpoint."""

from __future__ import annotations

import click

from andread.rundir.errors import OS_FAULT
from andread.rundir.layout import RunDirectory
from andrectl import awaiting, loose, planning, render, supervisor


@click.command()
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Give up waiting after this long; the daemon goes on stopping. Default: wait.",
)
@click.option("--json", "as_json", is_flag=True, help="Print how it ended as JSON.")
@click.pass_context
def command(ctx: click.Context, timeout: float | None, as_json: bool) -> None:
    """Stop the daemon at its next step boundary, on a checkpoint.

    Sends SIGTERM to the daemon that holds the run's lock, or stops the unit of a run that systemd
    owns, and waits until the lock is free. Exits
    with the daemon's own code, so a last checkpoint that could not be written is not missed.
    Stopping a run that is not running is no error; stopping one that a pivot is about to start is
    refused (75).
    """
    run: RunDirectory = ctx.obj
    stopped = supervisor.stop(run, timeout)
    if stopped is None:
        planning.refuse_in_flight(run)
        if as_json:
            render.json({"run": str(run.path), "was_running": False})
        else:
            click.echo(f"{run.path} was not running")
        return
    if as_json:
        render.json(
            {
                "run": str(run.path),
                "was_running": True,
                "pid": stopped.pid,
                "stopped": stopped.event or None,
                "checkpoint": stopped.checkpoint or None,
            }
        )
    _tell(run, stopped, silent=as_json)
    ctx.exit(int(stopped.event["exit_code"]))


def _tell(run: RunDirectory, stopped: supervisor.Stopped, silent: bool) -> None:
    """Print how the daemon ended; raise `DaemonEnded` if it did not say so itself."""
    if "exit_code" not in stopped.event:
        for line in stopped.log:
            render.note(f"  | {line}")
        raise awaiting.DaemonEnded(
            f"the daemon (pid {stopped.pid}) is gone without a last word: it was killed",
            "nothing durable is lost: andrectl start resumes from the newest valid checkpoint",
            OS_FAULT,
        )
    if silent:
        return
    event = stopped.event
    why, code = event.get("why", ""), event["exit_code"]
    where = f" after step {event['step']:,}" if "step" in event else ""
    click.echo(f"stopped{where} ({why}), exit code {code}")
    if stopped.checkpoint:
        path = run.checkpoint(loose.whole(stopped.checkpoint.get("step")))
        click.echo(f"{path}\nsha256 {loose.text(stopped.checkpoint.get('sha256'))}")
    if run.pivot.exists():
        render.next_step("andrectl pivot --resume goes on with the pivot that is pending")
    else:
        render.next_step("andrectl start resumes there")
