"""Have a checkpoint written now, and wait until it is durable."""

from __future__ import annotations

import click

from andread.rundir.layout import RunDirectory
from andrectl import asking, render


@click.command()
@click.option(
    "--at",
    type=click.Choice(["step", "cadence"]),
    default="step",
    show_default=True,
    help="At the next step boundary, or at the next regular checkpoint with its audit.",
)
@click.option("--no-pin", is_flag=True, help="Leave the checkpoint to retention.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Withdraw the request after this long. Default: wait for the answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the acknowledgement as JSON.")
@click.pass_obj
def command(run: RunDirectory, at: str, no_pin: bool, timeout: float | None, as_json: bool) -> None:
    """Have a checkpoint written now, and wait until it is durable.

    Leaves a request, sends SIGUSR1, and prints the step, path and SHA-256 that the daemon
    acknowledges. The checkpoint is pinned, so that retention keeps it; training goes on.
    """
    request = asking.request("snapshot", asking.owner(run), timeout, at=at, pin=not no_pin)
    event = asking.acknowledged(run, request, timeout)
    if as_json:
        render.json({"run": str(run.path), "pinned": request.pin, **event})
        return
    click.echo(f"step {event['step']:,}\n{event['path']}\nsha256 {event['sha256']}")
    step = event["step"]
    if request.pin:
        render.next_step(f"andrectl checkpoints --unpin {step} gives it back to retention")
    else:
        render.next_step(f"andrectl checkpoints --pin {step} would keep it")
