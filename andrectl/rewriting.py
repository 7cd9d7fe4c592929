"""run.toml with other values, for a copy: the text, comments and all, with them in their places.

Only a run.toml that a tool makes (a fork's, a scratch copy's) is ever written so. What comes out
is parsed and must say what was meant; where a value cannot be put in its place (one that spans
lines, a table in another form), the whole is written anew, without the comments.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

from andrectl.template import quoted, table_toml

_HEADER: Final = re.compile(r"\s*\[")


def with_values(text: str, values: Mapping[str, Any]) -> str:
    """Return the run.toml `text` with each `section.key` of `values` set."""
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
            text = _anew(wanted)
    return text


def _anew(document: Mapping[str, Any]) -> str:
    """Return a run.toml, parsed, as text."""
    tables = []
    for name, value in document.items():
        if isinstance(value, list):
            tables += [table_toml(f"[[{name}]]", table) for table in value]
        else:
            tables.append(table_toml(f"[{name}]", value))
    return "\n".join(tables)


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
