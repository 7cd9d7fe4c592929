"""The options that say what to change, of `pivot` and `fork` alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from andread.rundir.policy import ALGORITHMS
from andrectl import change
from andrectl.change import Change

Command = Callable[..., None]


def options(settable: str) -> Callable[[Command], Command]:
    """Give a command these options, as one argument: `given`, a `Change`.

    `settable` is the help of --set.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def changing(
            *arguments: Any,
            caps: tuple[str, ...],
            floors: tuple[str, ...],
            weights: tuple[str, ...],
            reset: bool,
            algorithm: str | None,
            values: tuple[str, ...],
            **others: Any,
        ) -> None:
            given = Change(
                caps=change.shares("caps", caps),
                floors=change.shares("floors", floors),
                weights=change.shares("weights", weights),
                algorithm=algorithm,
                values=change.values(values),
                reset=reset,
            )
            command(*arguments, given=given, **others)

        made: Command = changing
        for option in reversed(_options(settable)):
            made = option(made)
        return made

    return decorate


def _options(settable: str) -> list[Callable[[Command], Command]]:
    return [
        click.option(
            "--caps",
            multiple=True,
            metavar="SHARES",
            help="Upper limits, as code=0.3,web=0.5 or a TOML or JSON file; repeatable. 1 lifts a "
            "cap.",
        ),
        click.option(
            "--floors",
            multiple=True,
            metavar="SHARES",
            help="Lower limits, in the same forms. 0 lifts a floor.",
        ),
        click.option(
            "--weights",
            multiple=True,
            metavar="SHARES",
            help="Weights for `fixed`, in the same forms.",
        ),
        click.option(
            "--reset", is_flag=True, help="Start from no caps, floors and weights at all."
        ),
        click.option(
            "--policy",
            "algorithm",
            type=click.Choice(ALGORITHMS),
            help="Mix the sources by another algorithm.",
        ),
        click.option("--set", "values", multiple=True, metavar="KEY=VALUE", help=settable),
    ]
