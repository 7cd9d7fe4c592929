"""Which run a command is about.

In this order: `--run DIR`, `$ANDREAD_RUN`, the current directory if it is a run directory, the
only run under the state directory. A run directory is one that has a run.toml.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from andread.rundir.errors import AccessError, MissingError
from andread.rundir.layout import RunDirectory
from andrectl import ownership

VARIABLE: Final = "ANDREAD_RUN"
_GIVEN: Final = "andrectl.run"


def option(resolve: bool = True) -> click.Option:
    """Return the option `--run`; with `resolve` it also puts the run into `ctx.obj`."""
    return click.Option(
        ["--run"],
        metavar="DIR",
        expose_value=False,
        callback=_choose if resolve else _remember,
        help="The run directory; accepted before the command's name as well.",
    )


def _remember(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_GIVEN] = value


def _choose(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    _remember(ctx, parameter, value)
    if not ctx.resilient_parsing:
        ctx.obj = chosen(ctx)


def given(ctx: click.Context) -> str | None:
    """Return what `--run` names on the command line, None without one."""
    found: str | None = ctx.meta.get(_GIVEN)
    return found


def chosen(ctx: click.Context) -> RunDirectory:
    """Return the run that the command line and the environment mean; raise `MissingError`.

    From here on root is the run's owner.
    """
    run = find(given(ctx), os.environ, Path.cwd(), state_directory(os.environ))
    ownership.adopt(run.path)
    return run


def perhaps(ctx: click.Context) -> RunDirectory | None:
    """Return the run that is meant, as `chosen`; None if none was named and none is found."""
    if ctx.meta.get(_GIVEN) is None and not os.environ.get(VARIABLE):
        try:
            find(None, os.environ, Path.cwd(), state_directory(os.environ))
        except MissingError:
            return None
    return chosen(ctx)


def state_directory(environment: Mapping[str, str], root: bool | None = None) -> Path:
    """Return where runs live by default: the system's for root, else the user's own."""
    if os.geteuid() == 0 if root is None else root:
        return Path("/var/lib/andread")
    state = environment.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path("~/.local/state").expanduser()
    return base / "andread"


def find(
    given: str | None, environment: Mapping[str, str], current: Path, state: Path
) -> RunDirectory:
    """Return the run meant, by the order above; `MissingError` tells what was tried."""
    if given is not None:
        return _named(Path(given), "--run")
    if environment.get(VARIABLE):
        return _named(Path(environment[VARIABLE]), f"${VARIABLE}")
    if (run := RunDirectory(current)).exists():
        return run
    runs = _runs_under(state)
    if len(runs) == 1:
        return RunDirectory(runs[0])
    names = ", ".join(path.name for path in runs)
    found = f"{state} holds {len(runs)} runs ({names})" if runs else f"{state} holds no run"
    raise MissingError(
        f"which run? --run is not given, ${VARIABLE} is not set, {current} has no run.toml, "
        f"and {found}",
        "name one with --run DIR"
        if runs
        else "name one with --run DIR, or make one: andrectl init",
    )


def _named(path: Path, by: str) -> RunDirectory:
    """Return the run at `path`, which `by` named and which must exist."""
    run = RunDirectory(path)
    try:
        if run.exists():
            return run
        what = "has no run.toml" if path.is_dir() else "is not a directory"
    except PermissionError:
        raise AccessError(
            f"{path} (from {by}) may not be entered", "ask as its owner, or as root"
        ) from None
    raise MissingError(f"{path} (from {by}) {what}", f"andrectl init {path} would make a run of it")


def _runs_under(state: Path) -> list[Path]:
    """Return the run directories right under `state`; none if it cannot be read."""
    try:
        return sorted(path for path in state.iterdir() if RunDirectory(path).exists())
    except OSError:
        return []
