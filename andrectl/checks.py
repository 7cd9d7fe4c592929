"""Named checks: how `verify` and `doctor` look, tell what they found, and what it comes to.

A check is a name and a function that looks and returns what it found, one outcome or several
(`ok`, `warning`, `failed`, `skipped`); the name is put in by `perform`. A check that raises has
failed, with the error's message, hint and exit code: one that cannot look never hides the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import click

from andread.rundir import errors
from andread.rundir.errors import AndreadError, from_os_error
from andrectl import loose
from andrectl.cli import unexpected

Standing = Literal["ok", "warning", "failed", "skipped"]

_MARKS: Final[dict[Standing, tuple[str, str]]] = {
    "ok": ("✓", "green"),
    "warning": ("!", "yellow"),
    "failed": ("✗", "red"),
    "skipped": ("-", "bright_black"),
}


@dataclass(frozen=True)
class Outcome:
    """What one check found."""

    name: str
    standing: Standing
    detail: str
    """One line: what is well, or what is wrong and where."""
    hint: str = ""
    """What to do next; empty where nothing is to be done."""
    code: int = errors.OK
    """For a failed check: the exit code that it comes to."""


Looked = Outcome | Sequence[Outcome]


@dataclass(frozen=True)
class Check:
    """A name, and the function that looks."""

    name: str
    look: Callable[[], Looked]


def ok(detail: str = "") -> Outcome:
    """Return an outcome: all is well."""
    return Outcome("", "ok", detail)


def warning(detail: str, hint: str = "") -> Outcome:
    """Return an outcome: something a person should know that stops nothing."""
    return Outcome("", "warning", detail, hint)


def failed(detail: str, hint: str = "", code: int = errors.DATA) -> Outcome:
    """Return an outcome: something is wrong; `code` is the exit code that it comes to."""
    return Outcome("", "failed", detail, hint, code)


def skipped(detail: str, hint: str = "") -> Outcome:
    """Return an outcome: nobody looked; the detail says why."""
    return Outcome("", "skipped", detail, hint)


def of_error(error: AndreadError) -> Outcome:
    """Return the failed outcome that `error` stands for."""
    return failed(error.message, error.hint, error.exit_code)


def perform(checks: Iterable[Check]) -> list[Outcome]:
    """Run the checks in order and return every outcome, under its check's name."""
    return [
        dataclasses.replace(outcome, name=check.name, detail=loose.text(outcome.detail))
        for check in checks
        for outcome in _looked(check)
    ]


def _looked(check: Check) -> Sequence[Outcome]:
    try:
        found = check.look()
    except AndreadError as error:
        found = of_error(error)
    except OSError as error:
        found = of_error(from_os_error(error, "looking"))
    except Exception as error:
        found = of_error(unexpected(error))
    return [found] if isinstance(found, Outcome) else found


def exit_code(outcomes: Iterable[Outcome]) -> int:
    """Return the code of the first failed check, 0 if none has; a warning is no failure."""
    return next((outcome.code for outcome in outcomes if outcome.standing == "failed"), errors.OK)


def text(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as lines for a terminal, each hint under what it is for."""
    width = max((len(outcome.name) for outcome in outcomes), default=0)
    lines = []
    for outcome in outcomes:
        mark, color = _MARKS[outcome.standing]
        line = f"{click.style(mark, fg=color)} {outcome.name:<{width}}  {outcome.detail}"
        lines.append(line.rstrip())
        if outcome.hint:
            lines.append(f"  {'':<{width}}  hint: {outcome.hint}")
    return "\n".join(lines)


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return how many outcomes there are of each kind, on one line."""
    counts = [
        (sum(outcome.standing == standing for outcome in outcomes), standing) for standing in _MARKS
    ]
    return ", ".join(f"{number} {standing}" for number, standing in counts if number)


def payload(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the outcomes for `render.json`, which adds the schema version."""
    return {
        "passed": exit_code(outcomes) == errors.OK,
        "exit_code": exit_code(outcomes),
        "checks": [
            {
                "name": outcome.name,
                "standing": outcome.standing,
                "detail": outcome.detail,
                "hint": outcome.hint or None,
            }
            for outcome in outcomes
        ],
    }
