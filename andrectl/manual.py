"""Man pages and shell completions, made from the commands: `python -m andrectl.manual DIR`.

Needs click-man, which `make install` brings along; without it the completions alone are made.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from andread import __version__
from andrectl.cli import COMMANDS, main

COMPLETIONS: Final = {
    "bash": "bash-completion/completions/andrectl",
    "zsh": "zsh/site-functions/_andrectl",
    "fish": "fish/vendor_completions.d/andrectl.fish",
}
"""Where each shell looks, below a `share` directory."""


def write(share: Path) -> None:
    """Write everything below the directory `share`, such as /usr/local/share."""
    for shell, place in COMPLETIONS.items():
        made = get_completion_class(shell)
        assert made is not None, shell
        target = share / place
        target.parent.mkdir(parents=True, exist_ok=True)
        source = made(main, {}, "andrectl", "_ANDRECTL_COMPLETE").source()
        target.write_text(source, encoding="utf-8")
    try:
        from click_man.core import write_man_pages
    except ImportError:
        print("andrectl: no man pages, for click-man is not installed", file=sys.stderr)
        return
    pages = share / "man/man1"
    pages.mkdir(parents=True, exist_ok=True)
    context = click.Context(main, info_name="andrectl")
    for name in COMMANDS:  # the group imports lazily, and click-man wants them all
        if (command := main.get_command(context, name)) is not None:
            main.commands[name] = command
    write_man_pages("andrectl", main, version=__version__, target_dir=str(pages))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
