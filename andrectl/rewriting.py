"""run.toml of a fork: the parent's text, comments and all, with a few values put in their places.

Only a fork's own run.toml is ever made so. What comes out is parsed and must say what was meant:
a value that spans lines, or a table written in another way, is refused and left to a person.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

from andread.rundir.errors import ConfigError
from andrectl.template import quoted

_HEADER: Final = re.compile(r"\s*\[")


def with_values(text: str, values: Mapping[str, Any]) -> str:
    """Return the TOML `text` with each `section.key` of `values` set.

    Raises `ConfigError` for a place that cannot be rewritten.
    """
    for key, value in values.items():
        section, _, name = key.partition(".")
        wanted = tomllib.loads(text)
        wanted.setdefault(section, {})[name] = value
        text = _with_value(text, section, name, quoted(value))
        try:
            holds = tomllib.loads(text) == wanted
        except tomllib.TOMLDecodeError:
            holds = False
        if not holds:
            raise ConfigError(
                f"[{section}] {name} stands in run.toml in a form that cannot be rewritten",
                "fork without it; then edit the fork's run.toml, where the key is operational",
            )
    return text


def _with_value(text: str, section: str, name: str, value: str) -> str:
    """Put `name = value` into `[section]`, over the line that is there, or as its first."""
    lines = text.splitlines(keepends=True)
    header = re.compile(rf"\s*\[\s*{re.escape(section)}\s*\]\s*(#.*)?$")
    place = next((n for n, line in enumerate(lines) if header.match(line.rstrip())), None)
    if place is None:
        return f"{text.rstrip()}\n\n[{section}]\n{name} = {value}\n"
    given = re.compile(rf"(\s*{re.escape(name)}\s*=\s*)(.*?)(\s+#.*)?$")
    for number in range(place + 1, len(lines)):
        if _HEADER.match(lines[number]):
            break
        if found := given.match(lines[number].rstrip()):
            lines[number] = f"{found[1]}{value}{found[3] or ''}\n"
            return "".join(lines)
    if not lines[place].endswith("\n"):
        lines[place] += "\n"
    return "".join([*lines[: place + 1], f"{name} = {value}\n", *lines[place + 1 :]])
