"""docs/cli.md, made from the commands' own help: `python -m andrectl.reference`."""

from __future__ import annotations

from pathlib import Path

import click

from andread.rundir.errors import EXIT_CODES, UsageError
from andrectl.cli import COMMANDS, main

_HEAD = """\
# andrectl

The control tool, command by command, as `--help` prints it. This page is generated
(`python -m andrectl.reference`); a test fails when it is out of date.

"""


def markdown() -> str:
    """Return the whole page; a command that this installation lacks is left out."""
    group = main.make_context("andrectl", [], resilient_parsing=True, terminal_width=80)
    parts = [_HEAD, _block("andrectl", main.get_help(group))]
    for name in COMMANDS:
        try:
            command = main.get_command(group, name)
        except UsageError:
            continue
        assert command is not None
        context = click.Context(command, parent=group, info_name=name, terminal_width=80)
        parts.append(_block(f"andrectl {name}", command.get_help(context)))
    rows = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    parts.append(f"## Exit codes\n\n| code | meaning |\n|---|---|\n{rows}\n")
    return "".join(parts)


def _block(title: str, text: str) -> str:
    """Return one command's section."""
    return f"## {title}\n\n```text\n{text}\n```\n\n"


if __name__ == "__main__":
    Path("docs/cli.md").write_text(markdown(), encoding="utf-8")
