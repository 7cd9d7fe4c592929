"""Results to text or JSON: tables, durations, sizes, bars, sparklines.

Every JSON answer is one object with `"schema": 1`; a key may be added without changing that
number, never renamed or removed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import click
import orjson

SCHEMA: Final = 1
_BLOCKS: Final = " ▏▎▍▌▋▊▉█"
_LEVELS: Final = "▁▂▃▄▅▆▇█"


def json(payload: dict[str, Any], *, compact: bool = False) -> None:
    """Print `payload` as a JSON object with its schema version."""
    option = 0 if compact else orjson.OPT_INDENT_2
    click.echo(orjson.dumps({"schema": SCHEMA, **payload}, option=option).decode())


def note(text: str) -> None:
    """Narrate on stderr."""
    click.echo(text, err=True)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Return aligned columns; those whose number is in `left` are flush left, others right."""
    lines = [headers, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def duration(seconds: float | None) -> str:
    """Return `seconds` in its two largest units: 3d 4h, 17m 05s, 0.4s."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {whole % 60:02d}s" if minutes else f"{whole}s"


def size(number: float | None) -> str:
    """Return a number of bytes in decimal units, as disks are sold: 1.44 GB."""
    if number is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 999.5:
            return f"{number:.0f} B" if unit == "B" else f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB" if number < 1000 else f"{number:,.0f} TB"


def count(number: int, noun: str) -> str:
    """Return `number` with its noun: 1 checkpoint, 2 checkpoints."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def number(value: float | None, digits: int = 4) -> str:
    """Return `value` with `digits` decimals, a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def bar(share: float, width: int = 24) -> str:
    """Return a bar of `width` cells, filled from the left to `share` in 0…1."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_BLOCKS[rest] if rest else "")).ljust(width, "·")


def bounded_bar(share: float, floor: float, cap: float, width: int = 24) -> str:
    """Return a bar filled to `share`, with [ at a floor above 0 and ] at a cap below 1."""
    cells = list(bar(share, width))
    if floor > 0:
        cells[min(width - 1, int(floor * width))] = "["
    if cap < 1:
        cells[min(width - 1, int(cap * width))] = "]"
    return "".join(cells)


def percent(share: float | None) -> str:
    """Return a share with one decimal, a dash for None."""
    return "-" if share is None else f"{share:.1%}"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Return `values` as a line of blocks, each the mean of a stretch of them."""
    if not values:
        return ""
    cells = min(width, len(values))
    edges = [round(index * len(values) / cells) for index in range(cells + 1)]
    stretches = [values[a:b] for a, b in itertools.pairwise(edges)]
    means = [sum(stretch) / len(stretch) for stretch in stretches]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_LEVELS[min(7, int((mean - low) / span * 8))] for mean in means)


def next_step(text: str) -> None:
    """Name the next useful command, on stderr."""
    note(f"next: {text}")
