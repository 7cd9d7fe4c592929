"""One run or several as a picture: loss, validation, learning rate, gradient norm, shares.

Drawn without a display and without matplotlib's global state. Every line carries a `gid` such as
`loss`, `average`, `validation:code`, `share:code`, `cap:code`; with several runs the run's name
stands before it, as in `other/loss`. A reader of the figure finds the data by these.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from andread.rundir.errors import UsageError, from_os_error
from andrectl import extras
from andrectl.curves import Bounds, Curve, Curves, Mark, order

FORMATS: Final = (".png", ".svg")
_INK, _FAINT, _GRID = "#1f2430", "#8a90a0", "#e6e8ee"
_COLORS: Final = (
    *("#2f6fde", "#e4572e", "#17a398", "#b15ec8", "#d99a00", "#5b8c2a", "#c2416c", "#6b7280"),
    *("#0ea5c6", "#8d5a2b", "#7c6ff0", "#a3a300", "#3d5a80", "#f28482", "#43aa8b", "#9d4edd"),
)
_MARKS: Final[dict[str, tuple[str, str]]] = {
    "pivot": ("D", "#7048c6"),
    "fork": ("^", "#0b8f6f"),
    "restart": ("|", "#5b6375"),
    "spike": ("o", "#d99a00"),
    "skipped step": ("v", "#c2416c"),
    "fault": ("X", "#d62839"),
}
"""Marker and colour of each kind of mark; those that change the run also get a line."""
_LINED: Final = ("pivot", "fork")
_OUTLIER: Final = {"loss": 1.25, "grad_norm": 3.0}
"""What is so many times the mean of its bucket gets a line that can be seen."""
_RC: Final = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": "#c9cdd6",
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "text.color": _INK,
    "xtick.color": "#5b6375",
    "ytick.color": "#5b6375",
    "svg.hashsalt": "andread",
    "svg.fonttype": "none",
}


def draw(runs: Sequence[Curves], log: bool = False) -> Any:
    """Return the figure of `runs`; raise `ConfigError` if matplotlib is not installed."""
    matplotlib = extras.need("matplotlib", "plot", "a picture")
    figures = extras.need("matplotlib.figure", "plot", "a picture")
    with matplotlib.rc_context(_RC):
        return _Picture(figures.Figure, runs, log).figure


def save(figure: Any, path: Path) -> None:
    """Write `figure` as its file's name says; the same figure gives the same bytes."""
    matplotlib = extras.need("matplotlib", "plot", "a picture")
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path} is neither a .png nor a .svg", "name the picture so")
    buffer = io.BytesIO()
    svg = path.suffix.lower() == ".svg"
    with matplotlib.rc_context(_RC):
        metadata = {"Date": None} if svg else {"Software": None}
        figure.savefig(buffer, format=path.suffix.lower()[1:], dpi=150, metadata=metadata)
    try:
        path.write_bytes(buffer.getvalue())
    except OSError as error:
        raise from_os_error(error, "writing the picture") from error


class _Picture:
    """The figure and its panels, top to bottom, over one axis of steps."""

    def __init__(self, figure: Callable[..., Any], runs: Sequence[Curves], log: bool) -> None:
        self.runs = runs
        self.many = len(runs) > 1
        names = order(list(runs))
        self.colors = dict(zip(names, itertools.cycle(_COLORS)))
        shared = [each for each in runs if each.shares]
        heights = [0.2 + 0.25 * len(runs), 3.2, 1.7, 1.0, 1.2, *([1.7] * len(shared))]
        self.figure = figure(figsize=(12.5, 1.15 * sum(heights) + 0.9), layout="constrained")
        self.figure.get_layout_engine().set(h_pad=0.03, hspace=0.02)
        self.axes = self.figure.subplots(
            len(heights), 1, sharex=True, gridspec_kw={"height_ratios": heights}
        )
        strip, loss, validation, rate, norm, *shares = self.axes
        self._strip(strip)
        self._loss(loss, log)
        self._validation(validation)
        self._figure_of(rate, "learning rate", "lr", lambda each: each.lr)
        self._figure_of(norm, "gradient norm", "grad_norm", lambda each: each.grad_norm)
        for axis, each in zip(shares, shared, strict=True):
            self._shares(axis, each)
        for axis in self.axes[1:]:
            self._dress(axis)
        self._steps(self.axes[-1])
        self.figure.suptitle(self._title(), x=0.01, ha="left", fontsize=13, fontweight="bold")

    def gid(self, run: Curves, name: str) -> str:
        """Return the name under which a reader finds a line."""
        return f"{run.name}/{name}" if self.many else name

    def color(self, place: int) -> str:
        """Return the colour of a run."""
        return _COLORS[place % len(_COLORS)]

    def wide(self, place: int, width: float) -> float:
        """Return the width of a run's line: the first one shows beneath those that cover it."""
        return width + min(3.0, 1.4 * (len(self.runs) - 1 - place))

    def _title(self) -> str:
        if self.many:
            return "  ·  ".join(each.name for each in self.runs)
        only = self.runs[0]
        if not only.steps:
            return f"{only.name}: no step is recorded yet"
        last = next((value for value in reversed(only.average) if value is not None), None)
        loss = f", loss {last:.4f}" if last is not None else ""
        return f"{only.name}: steps {only.first:,} to {only.last:,}{loss}"

    def _dress(self, axis: Any) -> None:
        """Give a panel its grid and its legend at the right."""
        axis.grid(True, color=_GRID, linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(length=0)
        axis.margins(x=0.01)
        handles, labels = axis.get_legend_handles_labels()
        if handles:
            axis.legend(
                handles, labels, loc="upper left", bbox_to_anchor=(1.005, 1.03), frameon=False,
                fontsize=8.5, handlelength=1.6, labelspacing=0.3, borderaxespad=0.2,
                ncols=-(-len(labels) // 11),
            )  # fmt: skip
        for place, run in enumerate(self.runs):
            for mark in run.marks:
                if mark.kind in _LINED:
                    color = self.color(place) if self.many else _MARKS[mark.kind][1]
                    axis.axvline(mark.step + 0.5, color=color, linewidth=1, alpha=0.55, zorder=1)

    def _steps(self, axis: Any) -> None:
        """Label the axis that all panels share."""
        ticker = extras.need("matplotlib.ticker", "plot", "a picture")
        axis.xaxis.set_major_locator(ticker.MaxNLocator(nbins=10, integer=True))
        axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axis.set_xlabel("step")

    def _strip(self, axis: Any) -> None:
        """Show what happened, above all panels: a row a run, a marker a kind."""
        axis.set_ylim(-0.5, len(self.runs) - 0.5)
        axis.set_yticks([])
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        labelled: set[str] = set()
        for place, run in enumerate(self.runs):
            row = len(self.runs) - 1 - place
            if self.many:
                axis.text(
                    -0.005, row, run.name, transform=axis.get_yaxis_transform(), ha="right",
                    va="center", fontsize=8.5, color=self.color(place), clip_on=False,
                )  # fmt: skip
            for kind, (marker, color) in _MARKS.items():
                steps = [mark.step for mark in run.marks if mark.kind == kind]
                if not steps:
                    continue
                face = {"color": color} if marker == "|" else {"facecolor": color, "linewidth": 0}
                height = row + (0.3 if kind in _LINED else -0.2)
                axis.scatter(
                    steps, [height] * len(steps), marker=marker, s=40, clip_on=False, alpha=0.9,
                    label=None if kind in labelled else _plural(kind), gid=self.gid(run, kind),
                    **face,
                )  # fmt: skip
                labelled.add(kind)
            for mark in _apart(run, [mark for mark in run.marks if mark.kind in _LINED]):
                axis.annotate(
                    f"{mark.kind} {mark.step:,}", (mark.step, row + 0.3), (6, 0), va="center",
                    textcoords="offset points", fontsize=8, color=_MARKS[mark.kind][1],
                    annotation_clip=False,
                )  # fmt: skip
        if labelled:
            axis.legend(
                loc="upper left", bbox_to_anchor=(1.005, 1.2), frameon=False, fontsize=8.5,
                handlelength=1.0, labelspacing=0.15, ncols=2, columnspacing=0.8, borderaxespad=0.0,
            )  # fmt: skip

    def _loss(self, axis: Any, log: bool) -> None:
        """Draw the raw loss, its extremes in each bucket, and its moving average."""
        for place, run in enumerate(self.runs):
            color = self.color(place) if self.many else _INK
            faint = color if self.many else "#9fb6e6"
            band = run.width > 1
            if band:
                axis.fill_between(
                    run.steps, _gaps(run.loss.low), _gaps(run.loss.high), color=faint, linewidth=0,
                    alpha=0.25 if self.many else 0.5, gid=self.gid(run, "range"), zorder=2,
                    label=None if self.many else f"lowest to highest of {run.width:,} steps",
                )  # fmt: skip
            self._outliers(axis, run, "loss", run.loss, faint)
            if not self.many or not band:
                axis.plot(
                    run.steps, _gaps(run.loss.mean), color=faint if not band else "#6e93dd",
                    linewidth=0.8, alpha=0.5 if self.many else 0.9, gid=self.gid(run, "loss"),
                    label=None if self.many else ("mean of them" if band else "loss"), zorder=3,
                )  # fmt: skip
            axis.plot(
                run.ends, _gaps(run.average), color=color, zorder=4,
                linewidth=self.wide(place, 1.7),
                label=run.name if self.many else f"moving average, {run.horizon:,} steps",
                gid=self.gid(run, "average"),
            )  # fmt: skip
        axis.set_ylabel("loss, nats a token")
        if log:
            axis.set_yscale("log")
            ticker = extras.need("matplotlib.ticker", "plot", "a picture")
            for which in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
                which(ticker.FuncFormatter(lambda y, _: f"{y:g}"))

    def _outliers(self, axis: Any, run: Curves, name: str, curve: Curve, color: str) -> None:
        """Draw a spike of one step in a bucket of many as a hairline that can be seen."""
        if run.width == 1:
            return
        spikes = [
            (x, mean, high)
            for x, mean, high in zip(run.steps, curve.mean, curve.high, strict=True)
            if mean is not None and high is not None and high > _OUTLIER[name] * mean
        ]
        if spikes:
            axis.vlines(
                [x for x, _, _ in spikes], [low for _, low, _ in spikes],
                [high for _, _, high in spikes], color=color, linewidth=1.2, zorder=2,
                gid=self.gid(run, f"{name}:spikes"),
            )  # fmt: skip

    def _validation(self, axis: Any) -> None:
        """Draw the validation loss of each source and their mean; of several runs the means."""
        for place, run in enumerate(self.runs):
            for name, points in () if self.many else run.validation.items():
                axis.plot(
                    *_xy(points), color=self.colors[name], linewidth=1.1, label=name,
                    gid=self.gid(run, f"validation:{name}"), **_dots(points),
                )  # fmt: skip
            if run.mean:
                axis.plot(
                    *_xy(run.mean), color=self.color(place) if self.many else _INK,
                    linewidth=self.wide(place, 1.7),
                    label=run.name if self.many else "mean", gid=self.gid(run, "validation"),
                    **_dots(run.mean),
                )  # fmt: skip
        axis.set_ylabel("validation")
        if not any(run.mean for run in self.runs):
            _nothing(axis, "no audit yet")

    def _figure_of(self, axis: Any, label: str, name: str, curve: Callable[[Curves], Any]) -> None:
        """Draw a figure of the history, with its extremes where they differ."""
        for place, run in enumerate(self.runs):
            color = self.color(place) if self.many else "#5b6375"
            found = curve(run)
            if run.width > 1 and name != "lr":
                axis.fill_between(
                    run.steps, _gaps(found.low), _gaps(found.high), color=color, alpha=0.25,
                    linewidth=0, gid=self.gid(run, f"{name}:range"),
                )  # fmt: skip
                self._outliers(axis, run, name, found, color)
            axis.plot(
                run.steps, _gaps(found.mean), color=color,
                linewidth=self.wide(place, 1.2 if name == "lr" else 0.9),
                gid=self.gid(run, name),
            )  # fmt: skip
        axis.set_ylabel(label)
        if name == "lr":
            axis.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2), useMathText=True)
            axis.yaxis.get_offset_text().set_fontsize(8)

    def _shares(self, axis: Any, run: Curves) -> None:
        """Draw what each source got of the pulls, against its floor and its cap."""
        for name in [name for name in self.colors if name in run.shares]:
            color = self.colors[name]
            axis.plot(
                run.share_steps, run.shares[name], color=color, linewidth=1.3, label=name,
                gid=self.gid(run, f"share:{name}"),
            )  # fmt: skip
            for bounds in run.bounds.get(name, []):
                self._bound(axis, run, name, bounds)
        lines = extras.need("matplotlib.lines", "plot", "a picture")
        for kind, style in (("cap", "--"), ("floor", ":")):
            if any(line.get_gid() in self._bound_ids(run, kind) for line in axis.lines):
                axis.add_line(lines.Line2D([], [], color=_FAINT, linestyle=style, label=kind))
        axis.set_ylabel(f"shares, {run.name}" if self.many else "shares of the pulls")
        axis.set_ylim(0, None)
        ticker = extras.need("matplotlib.ticker", "plot", "a picture")
        axis.yaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=0))

    def _bound_ids(self, run: Curves, kind: str) -> set[str]:
        return {self.gid(run, f"{kind}:{name}") for name in run.bounds}

    def _bound(self, axis: Any, run: Curves, name: str, bounds: Bounds) -> None:
        """Draw a cap below 1 and a floor above 0 over the steps that they held for."""
        for kind, style, value, there in (
            ("cap", "--", bounds.cap, bounds.cap < 1),
            ("floor", ":", bounds.floor, bounds.floor > 0),
        ):
            if there:
                axis.plot(
                    [bounds.first, bounds.last], [value, value], color=_darker(self.colors[name]),
                    linestyle=style, linewidth=1.4, gid=self.gid(run, f"{kind}:{name}"), zorder=5,
                )  # fmt: skip


def _darker(color: str) -> str:
    """Return `color`, darker: a bound must be seen on the line that it holds."""
    parts = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{int(part * 0.62):02x}" for part in parts)


def _plural(kind: str) -> str:
    return f"{kind}s"


def _apart(run: Curves, marks: list[Mark]) -> list[Mark]:
    """Return those of `marks` whose labels do not run into each other."""
    room = 0.09 * max(1, run.last - run.first)
    kept: list[Mark] = []
    for mark in marks:
        if not kept or mark.step - kept[-1].step >= room:
            kept.append(mark)
    return kept


def _gaps(values: Sequence[float | None]) -> list[float]:
    """Return `values` with NaN for what is missing, which leaves a gap in a line."""
    return [math.nan if value is None else value for value in values]


def _xy(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _dots(points: Sequence[object]) -> dict[str, Any]:
    """Return the markers of a line of few points: a line of one point would not be seen."""
    return {"marker": "o", "markersize": 3.5} if len(points) <= 40 else {}


def _nothing(axis: Any, text: str) -> None:
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color=_FAINT)
    axis.set_yticks([])
