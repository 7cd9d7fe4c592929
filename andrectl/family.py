"""The tree of forks that a run belongs to: up through its parents, then down through their forks.

Records are followed by path, and believed only where the run that stands there is the one that is
meant. What is not there any more stays in the tree, as missing; nothing here raises for damage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from andread.rundir import history, lineage, lock
from andread.rundir.layout import RunDirectory
from andread.rundir.lineage import Record
from andrectl.loose import Reader, Table

HERE: Final = "here"
MISSING: Final = "missing"
ANOTHER: Final = "another run"
UNREADABLE: Final = "unreadable"


def tree(run: RunDirectory) -> Table:
    """Return the tree of `run`: `root`, a node with its `forks` within, and `damaged`."""
    reader = Reader()
    ancestry = ancestors(run, reader)
    known = {record.id: member for member, record in ancestry if record is not None}
    top, record = ancestry[-1]
    node = _node(top, None, run, known, reader, set())
    if record is not None:  # its parent is not there
        node |= _of(record)
        parent = Path(record.parent)
        node = {**_leaf(str(parent), _state(parent)), "forks": [node]}
    return {"run": str(run.path.absolute()), "root": node, "damaged": reader.damaged}


def ancestors(run: RunDirectory, reader: Reader) -> list[tuple[RunDirectory, Record | None]]:
    """Return `run` and its ancestors as far as they are there, each with what it is a fork by."""
    found: list[tuple[RunDirectory, Record | None]] = []
    seen: set[Path] = set()
    member = RunDirectory(run.path.resolve())
    while True:
        seen.add(member.path)
        record = origin(member, reader)
        found.append((member, record))
        if record is None:
            return found
        parent = RunDirectory(record.parent)
        if parent.path in seen or not reader.attempt(
            parent.settings,
            lambda p=parent, r=record: lineage.is_the_parent(p, r),  # type: ignore[misc]
        ):
            return found
        member = parent


def origin(run: RunDirectory, reader: Reader) -> Record | None:
    """Return what `run` is a fork by; None if it is none, or its record is damaged."""
    return reader.attempt(run.lineage, lambda: lineage.read(run.lineage))


def _node(
    run: RunDirectory,
    record: Record | None,
    asked: RunDirectory,
    known: dict[str, RunDirectory],
    reader: Reader,
    seen: set[Path],
) -> Table:
    """Return a run that is there, and its forks below it."""
    seen.add(run.path.resolve())
    node = _leaf(str(run.path), HERE) | {
        "asked": run.path.resolve() == asked.path.resolve(),
        "step": reader.attempt(run.history, lambda: history.last_step(run.history)) or 0,
        "running": reader.attempt(run.lock, lambda: lock.holder(run.lock)) is not None,
    }
    if record is not None:
        node |= _of(record)
    for child in _records(run, known, reader):
        fork = known.get(child.id, RunDirectory(child.fork))
        there = fork.path.resolve() not in seen and reader.attempt(
            fork.lineage,
            lambda f=fork, c=child: lineage.is_the_fork(f, c),  # type: ignore[misc]
        )
        if there:
            node["forks"].append(_node(fork, child, asked, known, reader, seen))
        else:
            node["forks"].append(_leaf(child.fork, _state(Path(child.fork))) | _of(child))
    return node


def _records(run: RunDirectory, known: dict[str, RunDirectory], reader: Reader) -> list[Record]:
    """Return what is recorded of the forks of `run`, and those of `known` that it is silent of."""
    paths = reader.attempt(run.forks, lambda: lineage.forks(run)) or []
    read = (reader.attempt(path, lambda p=path: lineage.read(p)) for path in paths)  # type: ignore[misc]
    found = {record.id: record for record in read if record is not None}
    for member in known.values():
        record = origin(member, reader)
        if record is not None and Path(record.parent) == run.path.resolve():
            found.setdefault(record.id, record)
    return sorted(found.values(), key=lambda record: (record.step, record.t))


def _leaf(path: str, state: str) -> Table:
    """Return a node of which nothing is known but where it was."""
    return {
        "path": path,
        "state": state,
        "asked": False,
        **dict.fromkeys(("step", "running", "id", "at", "sha256", "t", "changes")),
        "forks": [],
    }


def _of(record: Record) -> dict[str, Any]:
    """Return what a record tells of a fork."""
    return {
        "id": record.id,
        "at": record.step,
        "sha256": record.sha256,
        "t": record.t,
        "changes": list(record.changes),
    }


def _state(path: Path) -> str:
    """Return why the run that is meant is not at `path`."""
    try:
        return ANOTHER if RunDirectory(path).exists() else MISSING
    except OSError:
        return UNREADABLE
