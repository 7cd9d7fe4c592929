"""List the checkpoints; pin and unpin them."""

from __future__ import annotations

import time

import click

from andread.rundir import commit
from andread.rundir.errors import MissingError
from andread.rundir.layout import RunDirectory
from andrectl import inventory, loose, render
from andrectl.inventory import Entry


@click.command()
@click.option(
    "--pin", "pins", type=click.IntRange(0), multiple=True, metavar="N", help="Keep step N."
)
@click.option(
    "--unpin",
    "unpins",
    type=click.IntRange(0),
    multiple=True,
    metavar="N",
    help="Leave step N to retention.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.pass_obj
def command(
    run: RunDirectory, pins: tuple[int, ...], unpins: tuple[int, ...], as_json: bool
) -> None:
    """List the checkpoints; pin and unpin them.

    Retention keeps the newest ones and those that [run] keep_every names; a pin keeps one more
    for as long as it stands.
    """
    pinned = commit.pinned(run) if unpins else set()
    for step in (*pins, *(step for step in unpins if step not in pinned)):
        _must_exist(run, step)  # a pin may have outlived what it kept, and go
    for step in pins:
        commit.pin(run, step)
        try:
            _must_exist(run, step)
        except MissingError:  # retention was quicker
            commit.unpin(run, step)
            raise
    for step in unpins:
        commit.unpin(run, step)
    found = inventory.entries(run)
    aside = inventory.rejected(run)
    if as_json:
        rows = [_json(run, entry) for entry in found]
        render.json({"run": str(run.path), "checkpoints": rows, "rejected": aside})
        return
    if found:
        click.echo(_table(found))
    else:
        render.note(f"{run.path} has no checkpoint yet")
    for name in aside:
        render.note(f"set aside as invalid: {name}")
    total = sum(entry.bytes for entry in found)
    render.note(f"{render.count(len(found), 'checkpoint')}, {render.size(total)}")
    render.next_step("andrectl snapshot" if found else "andrectl start")


def _must_exist(run: RunDirectory, step: int) -> None:
    """Raise `MissingError` unless there is a checkpoint of `step`."""
    if not run.checkpoint(step).is_file():
        steps = ", ".join(map(str, run.checkpoint_steps()[-8:])) or "none"
        raise MissingError(f"there is no checkpoint of step {step}", f"the newest ones: {steps}")


def _json(run: RunDirectory, entry: Entry) -> loose.Table:
    """Return a checkpoint as a JSON object."""
    vouched = entry.companion
    return {
        "step": entry.step,
        "path": str(run.checkpoint(entry.step)),
        "bytes": entry.bytes,
        "pinned": entry.pinned,
        "problem": entry.problem or None,
        "t": vouched.t if vouched else None,
        "reasons": list(vouched.reasons) if vouched else None,
        "sha256": vouched.sha256 if vouched else None,
        "policy": vouched.policy if vouched else None,
    }


def _table(found: list[Entry]) -> str:
    """Return the list as text."""
    rows = [
        [
            str(entry.step),
            f"{entry.bytes:,}",
            render.duration(time.time() - entry.companion.t) if entry.companion else "-",
            "pinned" if entry.pinned else "",
            ", ".join(entry.companion.reasons) if entry.companion else "-",
            entry.problem or (f"{entry.companion.sha256[:16]}…" if entry.companion else ""),
        ]
        for entry in found
    ]
    headers = ["step", "bytes", "age", "", "reasons", "sha256"]
    return render.table(headers, rows, left=(3, 4, 5))
