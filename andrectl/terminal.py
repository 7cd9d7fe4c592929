"""One run or several as a picture of characters, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from andrectl import extras
from andrectl.curves import Curves, order

_ROWS: Final = {"loss": 15, "validation": 10, "shares": 10}
_MINIMUM: Final = 40


def draw(runs: Sequence[Curves], width: int, color: bool, log: bool = False) -> str:
    """Return the picture, `width` cells wide; `ConfigError` if plotext is not installed."""
    plot = extras.need("plotext", "terminal", "a picture in the terminal")
    many = len(runs) > 1
    audited = [each for each in runs if each.mean]
    pulled = [each for each in runs if each.shares]
    rows = [_ROWS["loss"], *([_ROWS["validation"]] if audited else [])]
    rows += [_ROWS["shares"]] * len(pulled)
    plot.main()
    plot.clear_figure()
    plot.limit_size(False, False)
    plot.plotsize(max(_MINIMUM, width), sum(rows))
    plot.subplots(len(rows), 1)
    for row, height in enumerate(rows, 1):
        plot.subplot(row, 1).plotsize(max(_MINIMUM, width), height)
    _loss(plot.subplot(1, 1), runs, many, log)
    if audited:
        _validation(plot.subplot(2, 1), audited, many)
    names = order(list(runs))
    for row, each in enumerate(pulled, 1 + len(rows) - len(pulled)):
        _shares(plot.subplot(row, 1), each, names, many)
    for row in range(1, len(rows) + 1):
        _steps(plot.subplot(row, 1), runs)
    built: str = plot.build()
    return built if color else plot.uncolorize(built)


def _loss(axis: Any, runs: Sequence[Curves], many: bool, log: bool) -> None:
    """Draw the moving average of each run, and of a single one the highest losses behind it."""
    _plain(axis)
    axis.title("loss" if many else f"{runs[0].name}: loss")
    if log:
        axis.yscale("log")
    for each in runs:
        if not many:
            _line(axis, each.steps, each.loss.high, "highest" if each.width > 1 else "each step")
        label = each.name if many else f"average of {each.horizon}"
        _line(axis, each.ends, each.average, label)
        for mark in each.marks:
            if mark.kind in ("pivot", "fork"):
                axis.vline(mark.step, "magenta")


def _validation(axis: Any, runs: Sequence[Curves], many: bool) -> None:
    _plain(axis)
    axis.title("validation loss")
    for each in runs:
        steps, losses = [step for step, _ in each.mean], [loss for _, loss in each.mean]
        _line(axis, steps, losses, each.name if many else "mean")


def _shares(axis: Any, run: Curves, names: Sequence[str], many: bool) -> None:
    _plain(axis)
    axis.title(f"shares of the pulls, %{f', {run.name}' if many else ''}")
    for name in names:
        if name in run.shares:
            _line(axis, run.share_steps, [100 * share for share in run.shares[name]], name)


def _steps(axis: Any, runs: Sequence[Curves]) -> None:
    """Label the axis of the steps with whole numbers."""
    first, last = min(each.first for each in runs), max(each.last for each in runs)
    ticks = sorted({first + round((last - first) * part / 4) for part in range(5)})
    axis.xticks(ticks, [f"{tick:,}" for tick in ticks])


def _plain(axis: Any) -> None:
    """Leave background and frame to the terminal's own colours."""
    axis.canvas_color("default")
    axis.axes_color("default")
    axis.ticks_color("default")


def _line(axis: Any, steps: Sequence[float], values: Sequence[float | None], label: str) -> None:
    """Draw what there is of a curve."""
    points = [(x, y) for x, y in zip(steps, values, strict=True) if y is not None]
    points = [(x, y) for x, y in points if math.isfinite(y)]
    if points:
        axis.plot([x for x, _ in points], [y for _, y in points], marker="braille", label=label)
