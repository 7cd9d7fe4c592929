"""Show the policy in force, and how each source stands against its bounds."""

from __future__ import annotations

from pathlib import Path

import click

from andread.rundir.layout import RunDirectory
from andread.rundir.policy import policy_at, read_policies
from andread.rundir.run_toml import read_settings
from andrectl import draft, render, standing
from andrectl.overview import overview


@click.command()
@click.option(
    "--check",
    "path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Tell whether a policy, in TOML or JSON, could be obeyed with the run's sources; "
    "changes nothing.",
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.pass_obj
def command(run: RunDirectory, path: Path | None, as_json: bool) -> None:
    """Show the policy in force, and how each source stands against its bounds.

    In the bars [ is a floor and ] a cap. A zombie is an arm whose source was taken out of run.toml.

    A file for --check has any of a policy's keys: algorithm, weights, caps, floors, max_epochs,
    warmup, bandit; what it leaves out stays as it is in force. What cannot be obeyed is refused
    with the sums (exit code 78).
    """
    if path is not None:
        _check(run, path, as_json)
        return
    view = standing.standing(run)
    if as_json:
        render.json(view)
        return
    click.echo(standing.text(view))
    render.next_step("andrectl policy --check FILE tries another one without touching the run")


def _check(run: RunDirectory, path: Path, as_json: bool) -> None:
    """Tell whether the policy in the file at `path` could be obeyed from the next step on."""
    step = overview(run)["step"]
    sources = read_settings(run.settings).source_names()
    base = policy_at(read_policies(run.policy), step + 1)
    base = base.without(base.named() - set(sources))
    asked = draft.drafted(base, path, step)
    told = standing.checked(asked, base, sources)
    if as_json:
        render.json({"run": str(run.path), "file": str(path), **told})
        return
    click.echo(standing.checked_text(told))
