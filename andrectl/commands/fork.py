"""Make a new run from a checkpoint of this one: the audit fork."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Final

import click

from andread.rundir.layout import RunDirectory
from andread.rundir.lineage import Record
from andrectl import branching, change, change_options, forking, render
from andrectl.branching import Plan
from andrectl.change import Change
from andrectl.cost import cost

_ROUNDS: Final = 5
"""Times that the newest checkpoint is tried for; a live parent may let it go meanwhile."""


def _step(_: click.Context, parameter: click.Parameter, value: str) -> int | None:
    """Return the step of `--at`, None for latest."""
    if value == "latest":
        return None
    try:
        step = int(value.replace(",", ""))
    except ValueError:
        step = -1
    if step < 0:
        raise click.BadParameter(f"{value!r} is neither a step nor latest.", param=parameter)
    return step


@click.command()
@click.option(
    "--at",
    metavar="STEP|latest",
    default="latest",
    show_default=True,
    callback=_step,
    help="The checkpoint to begin from; latest is the newest valid one.",
)
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="The new run directory; it must not be there yet.",
)
@change_options.options(
    "Another setting: what a pivot may set, and in the fork's own run.toml optimizer.beta1, "
    "beta2 and epsilon, run.…, engine.…, audit.… and faults.…."
)
@click.option(
    "--seed-stream",
    "stream",
    type=click.IntRange(0, 2**63 - 1),
    metavar="SEED",
    help="Draw other data from the fork on, by this seed. Default: the parent's draws.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be made; touch nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def command(
    run: RunDirectory,
    given: Change,
    at: int | None,
    into: Path,
    stream: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a new run from a checkpoint of this one: the audit fork.

    The parent may train meanwhile; its checkpoint is pinned. Checkpoint and tokens are shared with
    it where the file system can, the loss history is copied up to the step, and the fork's own
    checkpoint is verified by hash: it needs nothing from its parent afterwards.

    Without changes it is a null fork, which trains on bit for bit as its parent does. What a pivot
    could change becomes a policy that begins after the step, with a fresh bandit; policies that the
    parent begins later are not carried.

    Refused before anything is touched: a DIR that is there (exit code 73), no such step (66), a
    checkpoint that is not valid (65), an unknown key or bounds that cannot be met (78), a disk that
    is too small (74), a change that changes nothing (64).
    """
    plan = branching.plan(run, into, at, given, stream)
    for rejected in plan.skipped:
        render.note(f"passed over: {rejected.reason}")
    if dry_run:
        _show_plan(plan, as_json)
        return
    for rounds_left in reversed(range(_ROUNDS)):
        try:
            record = forking.fork(plan)
            break
        except forking.Vanished:
            if at is not None or not rounds_left:
                raise
        plan = branching.plan(run, into, at, given, stream)  # a newer one is there
    _show(plan, record, as_json)


def _lines(plan: Plan) -> list[str]:
    """Return what differs in the fork."""
    if not plan.changes:
        return ["changes       none: a null fork, bit for bit what its parent would be"]
    return [f"changes       {change.described(each)}" for each in plan.changes]


def _show_plan(plan: Plan, as_json: bool) -> None:
    """Print what would be made."""
    if as_json:
        render.json(
            {
                "run": str(plan.run.path),
                "dry_run": True,
                "into": str(plan.into),
                "step": plan.step,
                "sha256": plan.companion.sha256,
                "changes": plan.changes,
                "policy": plan.policy.id,
                "copied_bytes": plan.copied_bytes,
                "leftovers": [str(path) for path in forking.leftovers(plan.into)],
            }
        )
        return
    click.echo(f"would fork {plan.run.path} after step {plan.step:,} into {plan.into}")
    click.echo("\n".join(_lines(plan)))
    what = (
        f"{render.size(plan.copied_bytes)} to copy: it is another file system"
        if plan.copied_bytes
        else "checkpoint and tokens are shared with the parent where the file system can"
    )
    click.echo(f"disk          {what}")
    for path in forking.leftovers(plan.into):
        render.note(f"{path} was left by an interrupted fork: the next one removes it")
    render.next_step("the same without --dry-run")


def _show(plan: Plan, record: Record, as_json: bool) -> None:
    """Print what was made."""
    if as_json:
        render.json(
            {
                "run": record.fork,
                "id": record.id,
                "parent": record.parent,
                "step": record.step,
                "path": str(RunDirectory(plan.into).checkpoint(record.step)),
                "sha256": record.sha256,
                "policy": record.policy,
                "changes": list(record.changes),
                "shared": record.shared,
                "t": record.t,
            }
        )
    else:
        click.echo(f"{record.fork}: a fork of {record.parent} after step {record.step:,}")
        click.echo("\n".join(_lines(plan)))
        click.echo(f"checkpoint    sha256 {record.sha256}, verified")
        ways = Counter(record.shared.values())
        told = ", ".join(f"{render.count(n, 'file')} by {way}" for way, n in ways.items())
        click.echo(f"shared        {told}")
        click.echo(f"pinned        step {record.step:,} of the parent")
    steps = plan.settings.run.steps
    if steps <= record.step:
        render.note(
            f"[run] steps = {steps:,} is not behind it: --set run.steps=N, or edit run.toml"
        )
    _tell_disk(plan)
    render.next_step(f"andrectl start --run {record.fork}")


def _tell_disk(plan: Plan) -> None:
    """Warn where the fork would soon fill the disk."""
    takes = cost(plan.settings).disk_bytes
    free = shutil.disk_usage(plan.into).free
    if takes > free:
        render.note(f"warning: it takes up to {render.size(takes)}, {render.size(free)} are left")
