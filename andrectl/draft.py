"""A policy as a person writes it into a file, of TOML or JSON: any of the keys of a policy.

algorithm = "ucb"
[caps]
code = 0.3
"""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import orjson

from andread.rundir import files
from andread.rundir.errors import ConfigError, from_os_error
from andread.rundir.policy import LIMIT, Policy, policy_from
from andread.rundir.tables import nearest

_SET_BY_US = ("id", "begins_after")
"""What a copy out of policy.json has and a file cannot decide."""


def read_document(path: Path) -> dict[str, Any]:
    """Return the table in the file at `path`, JSON or TOML by its first character.

    Raises `ConfigError` for what is neither, and what `from_os_error` makes of an `OSError`.
    """
    try:
        data = files.read_bytes(path.resolve(), LIMIT)
    except OSError as error:
        raise from_os_error(error, f"reading {path}") from error
    try:
        if data.lstrip()[:1] == b"{":
            table: dict[str, Any] = orjson.loads(data)
            return table
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is neither a table of JSON nor of TOML: {error}", "correct it"
        ) from None


def drafted(base: Policy, path: Path, step: int) -> Policy:
    """Return `base` with what the file at `path` says instead, to begin after `step`.

    Raises `ConfigError` for an unknown key or a wrong value.
    """
    table = {key: value for key, value in read_document(path).items() if key not in _SET_BY_US}
    known = [field.name for field in dataclasses.fields(Policy)]
    for key, value in table.items():
        if key not in known and isinstance(value, (int, float)):
            raise ConfigError(
                f'{path}: unknown key "{key}"{nearest(key, known)}',
                "shares of sources stand in a table: [caps], [floors] or [weights]",
            )
    asked = policy_from(table, str(path))
    changes = {key: getattr(asked, key) for key in table}
    if "algorithm" in changes and asked.algorithm != "fixed":
        changes.setdefault("weights", {})
    return dataclasses.replace(base, **changes, begins_after=step)
