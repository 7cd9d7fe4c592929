"""List the pivots of the run: when, what changed, and the proof."""

from __future__ import annotations

import itertools
import time
from typing import Any

import click

from andread.rundir import lineage, pivot, policy
from andread.rundir.errors import AndreadError
from andread.rundir.layout import RunDirectory
from andread.rundir.run_toml import read_settings
from andread.rundir.settings import Settings
from andrectl import change, loose, render
from andrectl.loose import Table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.pass_obj
def command(run: RunDirectory, as_json: bool) -> None:
    """List the pivots of the run: when, what changed, and the proof.

    What is listed is policy.json itself, beside what the archives tell of each pivot. A policy
    that a fork brought along has no archive here.
    """
    settings = read_settings(run.settings)
    policies = policy.read_policies(run.policy)
    told = _manifests(run)
    forked = _forked_at(run)
    rows = [
        _row(before, after, told.get(after.id, {}), settings, forked)
        for before, after in itertools.pairwise(policies)
    ]
    if as_json:
        render.json({"run": str(run.path), "first": policies[0].id, "pivots": rows})
        return
    if not rows:
        render.note(f"no pivot yet: policy {policies[0].id} since the first step")
        render.next_step("andrectl pivot --caps SOURCE=SHARE --dry-run shows what one would do")
        return
    cells = [
        [
            f"{row['step']:,}",
            render.duration(time.time() - row["t"]) + " ago" if row["t"] else "-",
            f"{row['before']} → {row['policy']}",
            "; ".join(change.described(item) for item in row["changes"]),
            row["archive"] or "-",
            row["proof"],
        ]
        for row in rows
    ]
    headers = ["step", "time", "policy", "changes", "archive", "proof"]
    click.echo(render.table(headers, cells, left=(2, 3, 4, 5)))
    if run.pivot.exists():
        render.next_step("andrectl pivot --resume ends the one that is pending")


def _row(
    before: policy.Policy,
    after: policy.Policy,
    manifest: Table,
    settings: Settings,
    forked: int,
) -> dict[str, Any]:
    """Return one pivot; up to step `forked` the policies are those that a fork brought along."""
    given = loose.table(manifest.get("proof"))
    verdict = "; ".join(given.get("problems", [])) or "holds"
    if not given:
        verdict = "none" if manifest or after.begins_after > forked else "by fork"
    return {
        "step": after.begins_after,
        "t": loose.number(manifest.get("t")),
        "policy": after.id,
        "before": before.id,
        "changes": change.differences(before, after, settings),
        "archive": manifest.get("archive"),
        "proof": verdict,
    }


def _forked_at(run: RunDirectory) -> int:
    """Return the step that the run was forked at, -1 if it is no fork."""
    try:
        record = lineage.read(run.lineage)
    except (AndreadError, OSError) as error:
        render.note(str(error))
        return -1
    return record.step if record else -1


def _manifests(run: RunDirectory) -> dict[str, Table]:
    """Return the manifests of the archives by the id of their new policy; damaged ones are told."""
    found: dict[str, Table] = {}
    for name in pivot.archives(run):
        try:
            manifest = pivot.read_manifest(run, name)
        except (AndreadError, OSError) as error:
            render.note(f"archive/{name}: {error}")
            continue
        found[loose.text(loose.table(manifest.get("policy")).get("new"))] = manifest
    return found
