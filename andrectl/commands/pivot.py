"""Change the policy in mid-run, provably: the polish pivot."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import click

from andread.rundir import pivot, policy
from andread.rundir.errors import BusyError, UsageError
from andread.rundir.layout import RunDirectory
from andread.rundir.lock import RunLock
from andread.rundir.run_toml import read_settings
from andrectl import change, change_options, planning, proving, render
from andrectl.change import Change
from andrectl.pivoting import Pivot
from andrectl.planning import Plan


@click.command()
@change_options.options(
    "Another setting that may change in mid-run: the learning rate and its schedule, weight "
    "decay, clip and batch (optimizer.…), warmup.…, bandit.…, max_epochs."
)
@click.option(
    "--at",
    type=click.Choice(["cadence", "step"]),
    default="cadence",
    show_default=True,
    help="At the next regular checkpoint with its audit, or at the next step boundary.",
)
@click.option("--dry-run", is_flag=True, help="Show plan, new policy and refusals; touch nothing.")
@click.option("--resume", is_flag=True, help="Go on with a pivot that was left behind.")
@click.option("--abort", is_flag=True, help="Give up a pivot that was left behind.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Give up waiting after this long in all; before the commit the pivot is taken back. "
    "Default: wait.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def command(
    run: RunDirectory,
    given: Change,
    at: str,
    dry_run: bool,
    resume: bool,
    abort: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Change the policy in mid-run, provably: the polish pivot.

    Given values change, the rest stays. The daemon checkpoints at a boundary and is stopped; the
    samples and the bandit's state are archived; policy.json is replaced; the daemon goes on from
    that very checkpoint with a fresh bandit. Weights, m, v and the loss history go through
    untouched, which is proven by hash and kept in archive/pivot_NNNNNN/manifest.json.

    A stopped run can be pivoted too; it trains afterwards. Refused before anything is touched: a
    policy that changes nothing (exit code 64), an unknown source, bounds that cannot be met, a
    setting that may not change (78), another pivot (75).
    """
    if resume or abort:
        if given != Change() or dry_run or (resume and abort):
            raise UsageError(
                "--resume and --abort stand alone: what the pivot changes is in its journal",
                "andrectl status shows what is pending",
            )
        _finish(run, abort, timeout, as_json)
        return
    if given == Change():
        raise UsageError(
            "nothing to change is given", "--caps, --floors, --policy, --set; --help tells more"
        )
    found = planning.plan(run, given, at)
    if dry_run:
        _show_plan(run, found, as_json)
    if found.refusals:
        raise found.refusals[0]
    if dry_run:
        return
    assert found.target is not None, "a plan without refusals has a policy"
    journal = pivot.Journal(
        target=found.target.content(),
        base=found.base.id,
        at=at,
        running=found.running,
        supervisor=found.owner.supervisor,
        t=round(time.time(), 3),
    )
    for difference in found.changes:
        render.note(f"    {change.described(difference)}")
    with _lock(run) as held:
        if pivot.read(run) is not None:  # between the plan and the lock
            raise planning.in_flight(None)
        manifest = Pivot(run, found.settings, held, journal, timeout).carry_out()
    _show(run, manifest, as_json)


def _finish(run: RunDirectory, abort: bool, timeout: float | None, as_json: bool) -> None:
    """Go on with the pivot in flight, or give it up."""
    with _lock(run) as held:
        journal = pivot.read(run)
        if journal is None:
            raise UsageError("no pivot is in flight", "andrectl pivots lists those that were made")
        unfinished = Pivot(run, read_settings(run.settings), held, journal, timeout)
        if abort:
            unfinished.abort()
            policies = policy.read_policies(run.policy)
            if as_json:
                render.json({"run": str(run.path), "aborted": True, "policy": policies[-1].id})
            else:
                click.echo(f"the pivot is given up: policy {policies[-1].id} stays in force")
                render.next_step("andrectl status")
            return
        manifest = unfinished.resume()
    _show(run, manifest, as_json)


@contextlib.contextmanager
def _lock(run: RunDirectory) -> Iterator[RunLock]:
    """Hold the pivot's lock."""
    try:
        held = RunLock.acquire(run.pivot_lock)
    except BusyError:
        raise planning.in_flight(None) from None
    with held:
        yield held


def _show_plan(run: RunDirectory, found: Plan, as_json: bool) -> None:
    """Print what would be done, and what speaks against it."""
    target = found.target
    if as_json:
        render.json(
            {
                "run": str(run.path),
                "dry_run": True,
                "plan": found.lines(),
                "policy": target.content() if target else None,
                "changes": found.changes,
                "refusals": [error.message for error in found.refusals],
            }
        )
        return
    click.echo("\n".join(found.lines()))
    click.echo(f"\npolicy after {found.base.id}:")
    for difference in found.changes:
        click.echo(f"    {change.described(difference)}")
    for error in found.refusals[1:]:
        render.note(f"refused as well: {error.message}")


def _show(run: RunDirectory, manifest: dict[str, Any], as_json: bool) -> None:
    """Print the proof; raise `DataError` where it fails."""
    if as_json:
        render.json({"run": str(run.path), **manifest})
    lines = proving.lines(manifest)
    if as_json:
        return
    click.echo(f"pivoted after step {manifest['step']:,}")
    click.echo("\n".join(lines))
    click.echo(f"archive        {run.archive / manifest['archive']}")
    render.next_step("andrectl status --watch; andrectl pivots lists this and earlier ones")
