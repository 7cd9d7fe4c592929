"""Show the tree of forks that the run belongs to."""

from __future__ import annotations

from collections.abc import Iterator

import click

from andread.rundir.layout import RunDirectory
from andrectl import change, family, loose, render
from andrectl.loose import Table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the tree as JSON.")
@click.pass_obj
def command(run: RunDirectory, as_json: bool) -> None:
    """Show the tree of forks that the run belongs to.

    From any member: up through the parents that are still there, down through the forks that each
    has recorded. Those that were moved or deleted are shown as missing.
    """
    found = family.tree(run)
    if as_json:
        render.json(found)
        return
    click.echo("\n".join(_lines(found["root"])))
    for item in found["damaged"]:
        render.note(f"{item['file']}: {item['problem']}")
    alone = found["root"]["asked"] and not found["root"]["forks"]
    if alone:
        render.note("it is no fork, and has none")
    render.next_step(
        "andrectl fork --into DIR makes a fork"
        if alone
        else "andrectl compare RUN RUN tells which of two is ahead"
    )


def _lines(node: Table, first: str = "", rest: str = "") -> Iterator[str]:
    """Yield the tree below `node` as lines."""
    yield first + _told(node)
    for place, fork in enumerate(node["forks"], 1):
        last = place == len(node["forks"])
        yield from _lines(
            fork, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")
        )


def _told(node: Table) -> str:
    """Return one run in words."""
    parts = [click.style(loose.text(node["path"]), bold=node["asked"])]
    if node["at"] is not None:
        changes = ", ".join(map(change.described, node["changes"])) or "null fork"
        parts.append(f"from step {node['at']:,}: {changes}")
    if node["state"] == family.HERE:
        parts.append(f"at step {node['step']:,}, {'running' if node['running'] else 'stopped'}")
    else:
        parts.append(click.style(node["state"], fg="yellow"))
    if node["asked"]:
        parts.append("← this run")
    return "  ".join(parts)
