"""Tell which of several runs is ahead, step by step, and whether that is noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from andread.rundir.errors import MissingError, UsageError
from andread.rundir.layout import RunDirectory
from andrectl import change, comparison, family, loose, render, selection
from andrectl.comparison import Judging
from andrectl.loose import Reader, Table


@click.command(params=[selection.option(resolve=False)])
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN…")
@click.option(
    "--last",
    type=click.IntRange(1),
    metavar="STEPS",
    help="Judge by this many of the latest common steps. Default: the later half of them.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 0.9999),
    default=0.95,
    show_default=True,
    help="How often the intervals are to hold the true mean.",
)
@click.option(
    "--chance",
    type=click.FloatRange(0),
    metavar="NATS",
    help="How far apart two runs come to lie by chance alone, as a standard deviation. Default: "
    "0.4 % of the loss; in validation more, the fewer tokens an audit measures.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    runs: tuple[Path, ...],
    last: int | None,
    confidence: float,
    chance: float | None,
    as_json: bool,
) -> None:
    """Tell which of several runs is ahead, step by step, and whether that is noise.

    Each RUN is compared with the first, which is that of --run where one is given; one RUN alone
    with its parent. Steps are paired from where the histories part. The interval of a mean
    difference takes into account that neighbouring steps resemble each other. Where the mixes of
    the sources differ, training losses are not comparable, and the validation losses of the audits
    judge.

    The interval also allows for what chance does between any two runs, which one pair cannot tell:
    see --chance. Two null forks with other data (fork --seed-stream) show it.
    """
    first = selection.given(ctx)
    chosen = [_run(path) for path in ([Path(first)] if first else []) + list(runs)]
    if len(chosen) == 1:
        chosen = [_parent(chosen[0]), *chosen]
    found = comparison.comparison(chosen, Judging(confidence, last, chance))
    if as_json:
        render.json(found)
        return
    click.echo(f"A  {found['first']}")
    for place, other in enumerate(found["others"]):
        letter = chr(ord("B") + place) if place < 25 else f"B{place}"
        click.echo("\n".join(_lines(other, letter, confidence)))
    for item in found["damaged"]:
        render.note(f"{item['file']}: {item['problem']}")
    idle = [other["run"] for other in found["others"] if not other["steps"]]
    render.next_step(
        f"andrectl start --run {idle[0]}, and compare again when it has trained"
        if idle
        else "andrectl lineage shows the tree that a run belongs to"
    )


def _run(path: Path) -> RunDirectory:
    run = RunDirectory(path)
    if not run.exists():
        raise MissingError(f"{path} is not a run directory", "name directories with a run.toml")
    return run


def _parent(run: RunDirectory) -> RunDirectory:
    """Return the parent of `run`, to compare it with."""
    line = family.ancestors(run, Reader())
    if line[0][1] is None:
        raise UsageError(f"{run.path} is no fork: compare it with what?", "name two runs")
    if len(line) < 2:
        raise MissingError(
            f"the parent of {run.path} is not at {line[0][1].parent} any more", "name two runs"
        )
    return line[1][0]


def _lines(other: Table, letter: str, confidence: float) -> list[str]:
    """Return one comparison as text."""
    training = other["training"]
    lines = [f"{letter}  {other['run']}", ""]
    relation = other["relation"]
    if relation and relation["step"] is not None:
        lines.append(
            f"both come from {relation['ancestor']}, as it was after step {relation['step']:,}"
        )
    if not other["steps"]:
        lines.append(
            f"nothing to compare yet: no step behind {other['parted_after']:,} was trained in both"
        )
        return [*lines, *_settings(other["differences"])]
    lines.append(
        f"they part after step {other['parted_after']:,}; paired up to step {other['upto']:,}: "
        f"{render.count(other['steps'], 'step')}"
        + (f", {other['unpaired']:,} left out (not applied)" if other["unpaired"] else "")
    )
    rows = [_row("training loss", training["means"], training["difference"], training["estimate"])]
    validation = other["validation"]
    if validation["mean"]:
        rows.append(_audited("validation, mean", validation["mean"]))
        rows += [_audited(f"  {name}", row) for name, row in validation["sources"].items()]
    headers = ["", "A", letter, f"{letter} − A", f"{confidence * 100:.4g} % interval"]
    lines += ["", render.table(headers, rows, left=(0,))]
    lines += _judged_by(other)
    if not validation["same_text"] and validation["mean"]:
        lines.append("the audits measure other text: their validation losses are not paired")
    lines += ["", _mix(other, letter), _speed(other, letter)]
    lines += _settings(other["differences"])
    return [*lines, "", click.style(_verdict(other, letter), bold=True)]


def _judged_by(other: Table) -> list[str]:
    """Return which steps and audits the table is about."""
    training, validation, lines = other["training"], other["validation"], []
    if training["from"] is not None:
        told = training["estimate"]
        worth = (
            f", worth {told['effective']:,.0f} independent ones; {told['chance']:.4f} nats are "
            "allowed for chance between two runs"
            if told
            else ""
        )
        lines.append(f"training over steps {training['from']:,} to {other['upto']:,}{worth}")
    if validation["mean"]:
        audits = render.count(validation["mean"]["audits"], "audit")
        lines.append(f"validation over the last {audits}, up to step {validation['step']:,}")
    return lines


def _row(label: str, means: list[Any], difference: float | None, told: Table | None) -> list[str]:
    interval = f"{told['low']:+.4f} … {told['high']:+.4f}" if told else "too few"
    shown = "-" if difference is None else f"{difference:+.4f}"
    return [label, render.number(means[0]), render.number(means[1]), shown, interval]


def _audited(label: str, row: Table) -> list[str]:
    return _row(label, row["means"], row["difference"], row["estimate"])


def _mix(other: Table, letter: str) -> str:
    shares = ", ".join(f"{name} {a:.1%} / {b:.1%}" for name, (a, b) in other["shares"].items())
    return f"{'pulls':<12}A / {letter}: {shares or 'none'}"


def _speed(other: Table, letter: str) -> str:
    one, two = (
        "-" if x is None else f"{x:,.0f}" if x >= 100 else f"{x:.3g}"
        for x in other["steps_per_minute"]
    )
    return f"{'pace':<12}A / {letter}: {one} / {two} steps a minute"


def _settings(found: dict[str, list[Table]]) -> list[str]:
    lines = [
        f"{label:<12}{change.described(each)}"
        for label, kind in (("run.toml", "settings"), ("policy", "policy"), ("environment",) * 2)
        for each in found[kind]
    ]
    return lines or [f"{'settings':<12}the same"]


def _verdict(other: Table, letter: str) -> str:
    """Return the verdict in words."""
    verdict = other["verdict"]
    why, by = verdict["why"], verdict["by"]
    if why == "identical":
        return f"{letter} is A, bit for bit: every loss is the same"
    if why == "not comparable":
        return (
            f"not comparable: {letter} and A are trained on other mixes of the sources, and there "
            "is no common audit to judge by"
        )
    size = "-" if verdict["difference"] is None else f"{abs(verdict['difference']):.4f}"
    what = f"by {size} nats of {loose.text(by)} loss"
    if why == "too short":
        return f"too few {'steps' if by == 'training' else 'audits'} to judge ({what} so far)"
    if why == "noise":
        return f"neither is ahead: the difference is within the noise ({what})"
    return f"{'A' if verdict['ahead'] == 'first' else letter} is ahead {what}, more than noise"
