"""Show the latest audits: samples and validation losses."""

from __future__ import annotations

from typing import Any

import click

from andread.rundir import samples
from andread.rundir.errors import MissingError
from andread.rundir.layout import RunDirectory
from andrectl import loose, render


@click.command()
@click.option("--step", type=click.IntRange(0), metavar="N", help="Only the audit of step N.")
@click.option(
    "--last",
    type=click.IntRange(1),
    metavar="K",
    default=1,
    show_default=True,
    help="The latest K audits, oldest first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the audits as JSON.")
@click.pass_obj
def command(run: RunDirectory, step: int | None, last: int, as_json: bool) -> None:
    """Show the latest audits: samples and validation losses.

    An audit generates a continuation for each prompt and measures the loss on text that is never
    trained on. distinct is the share of different word pairs, repetition that of tokens in loops:
    a model that repeats itself shows here before it shows in the loss.
    """
    audits = samples.read(run.samples)["audits"]
    if step is not None:
        chosen = [audit for audit in audits if audit.get("step") == step]
        if not chosen:
            steps = ", ".join(str(audit.get("step")) for audit in audits) or "none"
            raise MissingError(f"there is no audit of step {step}", f"audits are kept of: {steps}")
    else:
        chosen = audits[-last:]
    if as_json:
        render.json({"run": str(run.path), "audits": chosen})
        return
    if not chosen:
        render.note(f"{run.path} has no audit yet")
    for audit in chosen:
        click.echo(_audit(audit))
    render.next_step("andrectl status")


def _audit(audit: loose.Table) -> str:
    """Return one audit as text."""
    validation = loose.table(audit.get("validation"))
    losses = ", ".join(
        f"{name} {render.number(loose.number(loss))}" for name, loss in validation.items()
    )
    mean = render.number(loose.number(audit.get("mean")))
    title = click.style(f"step {loose.whole(audit.get('step')):,}", bold=True)
    lines = [f"{title}  validation loss {mean}" + (f" ({losses})" if losses else "")]
    for sample in loose.tables(audit.get("samples")):
        lines += ["", _sample(sample)]
    return "\n".join([*lines, ""])


def _sample(sample: loose.Table) -> str:
    """Return one sample as text: its scores, then prompt and continuation."""
    scores = _scores(sample)
    prompt = click.style(_clean(sample.get("prompt")), dim=True)
    body = prompt + _clean(sample.get("text"))
    name = click.style(f"[{loose.text(sample.get('source'))}]", bold=True)
    return "\n".join([f"  {name} {scores}", *(f"    {line}" for line in body.splitlines())])


def _scores(sample: loose.Table) -> str:
    """Return the scores of a sample that are there."""
    keys = {"distinct_1": "distinct-1", "distinct_2": "-2", "distinct_3": "-3"}
    keys |= {"repetition": "repetition"}
    found = {label: loose.number(sample.get(key)) for key, label in keys.items()}
    return ", ".join(f"{label} {value:.2f}" for label, value in found.items() if value is not None)


def _clean(value: Any) -> str:
    """Return generated text fit for a terminal: line breaks stay, other controls do not."""
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in str(value or ""))
