"""Start the daemon and wait until it trains."""

from __future__ import annotations

import contextlib

import click

from andread.rundir.errors import AndreadError
from andread.rundir.layout import RunDirectory
from andread.rundir.overrides import settings_under
from andread.rundir.policy import read_policies
from andread.rundir.run_toml import read_settings
from andrectl import loose, planning, render, supervisor


@click.command()
@click.option(
    "--accept-history",
    is_flag=True,
    help="Go on although .loss.json is not what the checkpoint vouches for; recorded as a fault.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Train on another kind of device than the one recorded at the first start.",
)
@click.option("--foreground", is_flag=True, help="Run in this terminal until it ends or Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print the started event as JSON.")
@click.pass_obj
def command(
    run: RunDirectory, accept_history: bool, device: str | None, foreground: bool, as_json: bool
) -> None:
    """Start the daemon and wait until it trains.

    A run that systemd owns is started through its unit. Any other daemon is detached: it outlives
    this terminal, and writes what it has to say to andread.log.
    It resumes from the newest valid checkpoint. If it ends before it trains, the end of its log is
    shown and its exit code is passed on.
    """
    planning.refuse_in_flight(run)
    _tell_rate(run)
    options = ["--accept-history"] if accept_history else []
    options += ["--device", device] if device else []
    if foreground:
        supervisor.foreground(run, options)
    event = supervisor.start(run, options)
    if as_json:
        render.json({"run": str(run.path), **event})
        return
    step, steps = loose.whole(event.get("step")), loose.whole(event.get("steps"))
    if event["event"] == "finished" or (event["event"] == "started" and step >= steps):
        click.echo(f"{run.path} is finished at step {step:,}: there is nothing left to train")
        render.next_step("andrectl samples; to go on, raise [run] steps in run.toml")
        return
    if event["event"] != "started":
        click.echo(f"{run.path} does not train: {loose.text(event.get('why'))}")
        render.next_step("andrectl status")
        return
    click.echo(
        f"training since step {step:,} of {steps:,}, pid {event.get('pid')}, "
        f"{loose.text(event.get('device'))} {loose.text(event.get('precision'))}".rstrip()
    )
    if event.get("checkpoint"):
        click.echo(f"resumed from {loose.text(event['checkpoint'])}")
    render.next_step("andrectl status --watch")


def _tell_rate(run: RunDirectory) -> None:
    """Tell where the learning rate stays at its minimum; what is wrong is the daemon's to tell."""
    with contextlib.suppress(AndreadError, OSError):
        made = settings_under(read_settings(run.settings), read_policies(run.policy)[-1])
        steps, decay = made.run.steps, made.optimizer.decay_steps
        if steps > decay:
            render.note(
                f"past step {decay:,} (decay_steps) the rate stays at its minimum: andrectl pivot "
                f"--set optimizer.decay_steps={steps} stretches it"
            )
