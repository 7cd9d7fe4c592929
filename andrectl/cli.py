"""The Click group: lists every verb without importing it, and turns errors into exit codes.

A command module under `andrectl.commands` has the attribute `command`. Unless it is named in
`CHOOSES_ITSELF`, it gets the option `--run` here, and finds its `RunDirectory` in `ctx.obj`
(`@click.pass_obj`).
"""

from __future__ import annotations

import importlib
import io
import keyword
import os
import sys
import traceback
from typing import Any, Final

import click

from andread import __version__
from andread.rundir import errors
from andread.rundir.errors import AndreadError, UsageError
from andrectl import loose, selection

COMMANDS: Final[dict[str, str]] = {
    "init": "Make a run directory: run.toml from a preset and your sources.",
    "prepare": "Turn the sources into tokens, and train the tokenizer if there is none.",
    "start": "Start the daemon and wait until it trains.",
    "stop": "Stop the daemon at its next step boundary, on a checkpoint.",
    "status": "Tell how the run is doing.",
    "snapshot": "Have a checkpoint written now, and wait until it is durable.",
    "policy": "Show the policy in force, and how each source stands against its bounds.",
    "pivot": "Change the policy in mid-run, provably: the polish pivot.",
    "pivots": "List the pivots of the run: when, what changed, and the proof.",
    "fork": "Make a new run from a checkpoint of this one: the audit fork.",
    "compare": "Tell which of several runs is ahead, step by step, and whether that is noise.",
    "lineage": "Show the tree of forks that the run belongs to.",
    "samples": "Show the latest audits: samples and validation losses.",
    "plot": "Draw one run or several: as a file, or in the terminal.",
    "export": "Give the loss history, with its events, to other tools.",
    "checkpoints": "List the checkpoints; pin and unpin them.",
    "verify": "Prove that the run can be resumed, before that is needed.",
    "doctor": "Judge the machine and the unit: whether a run can be trained here for a month.",
    "import": "Begin a run from another engine's bare checkpoint.",
}
"""Every verb with its short help, in the order of a run's life."""

DEBUG: Final = "ANDRECTL_DEBUG"
"""The variable of the environment that has an internal error show its traceback."""

CHOOSES_ITSELF: Final = ("init", "status", "compare", "plot", "doctor")
"""Verbs that may be used where there is no run."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all verbs."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command `cmd_name`; None if there is no such verb."""
        if cmd_name not in COMMANDS:
            return None
        suffix = "_" if keyword.iskeyword(cmd_name) else ""
        module = f"{__package__}.commands.{cmd_name}{suffix}"
        try:
            command: click.Command = importlib.import_module(module).command
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise UsageError(f"this installation has no {cmd_name}", "reinstall andread") from None
        known = {name for parameter in command.params for name in parameter.opts}
        if cmd_name not in CHOOSES_ITSELF and "--run" not in known:
            command.params.append(selection.option())
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line and exit: an error becomes its message, its hint and its code."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a bar must not fail for a locale
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except click.UsageError as error:
            error.show()
            code = errors.USAGE
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except click.Abort:
            click.echo("interrupted", err=True)
            code = 130
        except AndreadError as error:
            code = tell(error)
        except OSError as error:
            code = tell(errors.from_os_error(error, "refused by the system"))
        except Exception as error:
            code = tell(unexpected(error))
        sys.exit(code if isinstance(code, int) else errors.OK)


def unexpected(error: Exception) -> AndreadError:
    """Return the error for what nobody thought of; its traceback is shown if it is asked for."""
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    what = loose.text(f"{type(error).__name__}: {error}")
    hint = f"please report it, with what {DEBUG}=1 in the environment shows"
    return AndreadError(f"an internal error: {what}", hint)


def tell(error: AndreadError) -> int:
    """Print `error` and its hint to stderr; return its exit code."""
    click.echo(f"andrectl: {error.message}", err=True)
    if error.hint:
        click.echo(f"  hint: {error.hint}", err=True)
    return error.exit_code


@click.group(
    cls=LazyGroup,
    params=[selection.option(resolve=False)],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="andrectl")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Control andread, a training daemon that checkpoints at step boundaries.

    Which run a command is about: --run DIR, else $ANDREAD_RUN, else the current directory, else
    the only run under the state directory.

    Results go to stdout, narration to stderr; exit codes follow sysexits.
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False
