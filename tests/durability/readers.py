"""andrectl's reading commands on one run directory, in a process with little memory to spend."""

from __future__ import annotations

import json
import resource
import traceback

from click.testing import CliRunner

from andrectl.cli import main

COMMANDS = (
    ("status",),
    ("status", "--json"),
    ("checkpoints",),
    ("checkpoints", "--json"),
    ("samples",),
    ("samples", "--json"),
    ("policy",),
    ("policy", "--json"),
    ("pivots",),
    ("pivots", "--json"),
)
MEMORY = 1 << 30


def readers(directory: str) -> None:
    """Run each command on `directory`; print exit code, output and trouble of each, as JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for command in COMMANDS:
        result = CliRunner().invoke(main, ["--run", directory, *command])
        trouble = ""
        if result.exception and not isinstance(result.exception, SystemExit):
            trouble = "".join(traceback.format_exception(result.exception))[-1500:]
        told = [" ".join(command), result.exit_code, result.stdout, result.stderr[-2000:], trouble]
        print(json.dumps(told), flush=True)
