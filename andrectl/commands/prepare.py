"""`andrectl prepare`: turn the sources of a run into tokens, ahead of training."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from andread.rundir.layout import RunDirectory
from andrectl import render

if TYPE_CHECKING:
    from andread.curriculum.prepare import Progress
    from andread.rundir.manifest import Manifest

SCHEMA: Final = 1

_PHASES: Final = {
    "sampling": "reading a sample for the tokenizer",
    "training": "training the tokenizer",
    "tokens": "making tokens",
    "ready": "ready",
}

_LINE_EVERY: Final = 10.0
"""Seconds between two plain lines of the same phase."""


@click.command(
    "prepare",
    help="Turn the sources into tokens, and train the tokenizer if there is none.\n\n"
    "What is done already is kept. It can be stopped at any moment and run again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def command(run: RunDirectory, as_json: bool) -> None:
    """Prepare the tokens of `run`; print a table, or JSON, of its sources."""
    from andread.curriculum.prepare import prepare
    from andread.rundir.run_toml import read_settings

    settings = read_settings(run.settings)
    with _stop_flag() as stopping, _narration() as tell:
        manifests = prepare(run, settings, tell, stopping)
    rows = [_row(manifest, settings.model.context) for manifest in manifests]
    for row in rows if settings.data.validation else ():
        if row["documents"] == 1 and not row["validation_windows"]:
            name = row["source"]
            render.note(f"{name}: it is one document; to validate it, split it into several files")
    if as_json:
        import orjson

        result = {"schema": SCHEMA, "run": str(run.path), "sources": rows}
        click.echo(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode())
        return
    print_table(rows)
    render.next_step("andrectl start")


@contextlib.contextmanager
def _stop_flag() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether SIGTERM or SIGINT came; a second one kills."""
    stopped = False

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal stopped
        stopped = True
        signal.signal(number, signal.SIG_DFL)

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield lambda: stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _narration() -> Iterator[Callable[[Progress], None]]:
    """Yield what tells progress on stderr: a bar on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield _plain()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console) as bar:
        tasks: dict[tuple[str, str], Any] = {}

        def tell(progress: Progress) -> None:
            if progress.phase == "note":
                console.print(_words(progress), markup=False, highlight=False)
                return
            phase = "tokens" if progress.phase == "ready" else progress.phase
            known = (progress.source, phase)
            if known not in tasks:
                words = f"{progress.source} {_PHASES[phase]}".strip()
                tasks[known] = bar.add_task(words, total=None)
            if phase != "training":
                bar.update(tasks[known], completed=progress.done, total=progress.total)

        yield tell


def _plain() -> Callable[[Progress], None]:
    told = ("", "")
    due = 0.0

    def tell(progress: Progress) -> None:
        nonlocal told, due
        what = (progress.phase, progress.source)
        if what == told and progress.phase != "note" and time.monotonic() < due:
            return
        told, due = what, time.monotonic() + _LINE_EVERY
        click.echo(_words(progress), err=True)

    return tell


def _words(progress: Progress) -> str:
    text = progress.text or _PHASES[progress.phase]
    if progress.phase in ("sampling", "tokens") and progress.total:
        text += f", {100 * progress.done // progress.total} %"
    return f"{progress.source}: {text}" if progress.source else text


def _row(manifest: Manifest, context: int) -> dict[str, Any]:
    return {
        "source": manifest.source,
        "documents": manifest.documents,
        "train_tokens": manifest.train_tokens,
        "unique_tokens": manifest.unique_tokens or None,
        "validation_tokens": manifest.validation_tokens,
        "train_windows": manifest.windows("train", context),
        "validation_windows": manifest.windows("validation", context),
        "skipped": {
            reason: {"count": entry.count, "names": entry.names}
            for reason, entry in manifest.skipped.items()
        },
        "fingerprint": manifest.fingerprint,
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print what was prepared, in 80 columns; what was skipped follows by reason."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("source")
    for heading in ("documents", "train tokens", "unique", "validation", "windows"):
        table.add_column(heading, justify="right")
    for row in rows:
        windows = f"{row['train_windows']:,} + {row['validation_windows']:,}"
        unique = row["unique_tokens"] and row["unique_tokens"] / row["train_tokens"]
        table.add_row(
            row["source"],
            f"{row['documents']:,}",
            f"{row['train_tokens']:,}",
            "-" if unique is None else f"{unique:.0%}",
            f"{row['validation_tokens']:,}",
            windows,
        )
    console = Console()
    console.print(table)
    for row in rows:
        for reason, entry in row["skipped"].items():
            names = ", ".join(entry["names"])
            more = ", …" if entry["count"] > len(entry["names"]) else ""
            console.print(
                f"{row['source']}: skipped {entry['count']:,} × {reason}: {names}{more}",
                markup=False,
                highlight=False,
            )
