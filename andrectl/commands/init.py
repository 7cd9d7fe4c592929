"""Make a run directory: run.toml from a preset and your sources."""

from __future__ import annotations

import dataclasses
import glob
import shutil
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import click

from andread.rundir import feasibility, files, policy, run_toml
from andread.rundir.errors import ExistsError, MissingError, UsageError
from andread.rundir.layout import RunDirectory
from andread.rundir.settings import PRESETS, SOURCE_FORMATS, Settings
from andrectl import change, ownership, render, template
from andrectl.cost import cost

_SHARES = "NAME=SHARE,…|FILE"
_WHOLE = click.IntRange(1, 2**31 - 1)
"""What the four bytes of a checkpoint's step can hold; no batch is larger either."""
_SEED = click.IntRange(0, 2**63 - 1)
_SUFFIXES = {".jsonl": "jsonl", ".gz": "jsonl", ".parquet": "parquet"}


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    default="andrea-nano",
    show_default=True,
    help="The model, and the recipe that goes with it.",
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="NAME=PATH[,PATH…]",
    help="A source and its files, folders or globs; repeat it for each source.",
)
@click.option(
    "--format",
    "formats",
    multiple=True,
    metavar="NAME=FORMAT",
    help=f"Format of a source ({', '.join(SOURCE_FORMATS)}). Default: by the first path's suffix.",
)
@click.option(
    "--text-key",
    "text_keys",
    multiple=True,
    metavar="NAME=KEY",
    help="Key or column that holds a source's text (jsonl, parquet). Default: text.",
)
@click.option("--example", is_flag=True, help="Write small example sources and use them.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A tokenizer.json to use. Default: train one on the sources.",
)
@click.option("--steps", type=_WHOLE, help="Where training ends.  [preset's]")
@click.option("--batch", type=_WHOLE, help="Sequences a step.  [preset's]")
@click.option("--lr", type=click.FloatRange(0, min_open=True), help="Peak rate.  [preset's]")
@click.option("--seed", type=_SEED, default=1, show_default=True, help="Of everything.")
@click.option(
    "--policy",
    "algorithm",
    type=click.Choice(policy.ALGORITHMS),
    default=policy.FIRST.algorithm,
    show_default=True,
    help="How the sources are mixed.",
)
@click.option("--weights", multiple=True, metavar=_SHARES, help="For --policy fixed.")
@click.option("--caps", multiple=True, metavar=_SHARES, help="The most a source may get.")
@click.option("--floors", multiple=True, metavar=_SHARES, help="The least a source must get.")
@click.option("--dry-run", is_flag=True, help="Print the run.toml on stdout, write nothing.")
def command(
    directory: Path,
    preset: str,
    sources: tuple[str, ...],
    formats: tuple[str, ...],
    text_keys: tuple[str, ...],
    example: bool,
    tokenizer: Path | None,
    steps: int | None,
    batch: int | None,
    lr: float | None,
    seed: int,
    algorithm: str,
    weights: tuple[str, ...],
    caps: tuple[str, ...],
    floors: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Make a run directory: run.toml from a preset and your sources.

    Writes a commented run.toml and the first policy into DIRECTORY, and says what the run will take
    in disk, memory and tokens. An existing run.toml is never overwritten. Shares are parts of all
    pulls (0.3 is 30 %); caps and floors that cannot be met together are refused.
    """
    ownership.adopt(directory)
    run = RunDirectory(directory)
    _refuse_past(run)
    given = [_source(text) for text in sources]
    _assign(given, formats, "format")
    _assign(given, text_keys, "text_key")
    if not given and not example:
        raise UsageError("a run needs sources", "name one with --source NAME=PATH, or --example")
    recipe = template.RECIPES[preset]
    recipe = dataclasses.replace(
        recipe, steps=steps or recipe.steps, batch=batch or recipe.batch, lr=lr or recipe.lr
    )
    if batch and recipe.micro_batch and batch % recipe.micro_batch:
        recipe = dataclasses.replace(recipe, micro_batch=0)
    if example:
        given = _example(directory, dry_run) + given
    path = str(tokenizer.absolute()) if tokenizer else ""
    text = template.run_toml(preset, recipe, seed, given, path)
    made = run_toml.settings_from(tomllib.loads(text))
    first = policy.Policy(
        algorithm=algorithm,
        weights=change.shares("weights", weights),
        caps=change.shares("caps", caps),
        floors=change.shares("floors", floors),
    )
    feasibility.check(first, made.source_names())
    if dry_run:
        click.echo(text, nl=False)
        return
    _make(directory)
    policy.write_policies(run.policy, [first])
    files.replace(run.settings, text.encode())
    assert run_toml.read_settings(run.settings) == made
    _report(run, made)


def _refuse_past(run: RunDirectory) -> None:
    """Raise `ExistsError` if the directory is a run already, or holds the past of one."""
    if run.settings.exists() or run.settings.is_symlink():
        raise ExistsError(
            f"{run.settings} is there already", "edit it, or choose another directory"
        )
    if run.path.is_dir() and (run.checkpoint_steps() or files.exists(run.history)):
        raise ExistsError(
            f"{run.path} holds checkpoints or a loss history but no run.toml",
            "restore its run.toml, or choose another directory",
        )


def _pair(text: str, option: str) -> tuple[str, str]:
    """Split `NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UsageError(f"{option} {text}: expected NAME=VALUE", f"as in {option} books=…")
    return name, value


def _source(text: str) -> dict[str, Any]:
    """Return the [[source]] table of one `--source`; its paths become absolute."""
    name, value = _pair(text, "--source")
    paths = [str(Path(path).expanduser().absolute()) for path in value.split(",") if path]
    for path in paths:
        if not Path(path).exists() and not glob.glob(path, recursive=True):  # noqa: PTH207
            raise MissingError(f"source {name}: there is no {path}", "check the path")
    return {"name": name, "paths": paths, "format": _SUFFIXES.get(Path(paths[0]).suffix, "text")}


def _assign(tables: list[dict[str, Any]], options: tuple[str, ...], key: str) -> None:
    """Set `key` of the tables that the `NAME=VALUE` options name."""
    for text in options:
        name, value = _pair(text, "--" + key.replace("_", "-"))
        named = [table for table in tables if table["name"] == name]
        if not named:
            raise UsageError(f"there is no source {name}", f"add --source {name}=PATH")
        named[0][key] = value


def _make(directory: Path) -> None:
    """Make the directory and its parents; it may be there already."""
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)


def _example(directory: Path, dry_run: bool) -> list[dict[str, Any]]:
    """Write the example sources and return their [[source]] tables."""
    from andrectl.example import write_example

    if dry_run:
        with tempfile.TemporaryDirectory() as place:
            return write_example(Path(place))
    _make(directory)
    render.note("writing the example sources")
    return write_example(directory)


def _report(run: RunDirectory, made: Settings) -> None:
    """Tell what was written and what the run will take."""
    takes = cost(made)
    free = shutil.disk_usage(run.path).free
    click.echo(f"{run.settings}: {', '.join(made.source_names())}")
    rows = [
        ("parameters", f"{takes.parameters:,}"),
        ("checkpoint", f"{takes.checkpoint_bytes:,} bytes"),
        (
            "disk",
            f"{render.size(takes.disk_bytes)} at steady state: {takes.checkpoints} checkpoints, "
            f"one of them being written ({render.size(free)} free), plus 2 bytes a token of data",
        ),
        (
            "memory",
            f"{render.size(takes.training_bytes)} for weights, gradients and moments on the "
            f"device, {render.size(takes.staging_bytes)} on the host to write checkpoints from; "
            "activations come on top",
        ),
        ("tokens", f"{takes.tokens_per_step:,} a step, {takes.tokens:,} in {made.run.steps:,}"),
    ]
    for label, value in rows:
        click.echo(f"{label:<12}{value}")
    if takes.disk_bytes > free:
        render.note("warning: that is more than the disk has left")
    render.next_step(f"andrectl prepare --run {run.path}")
