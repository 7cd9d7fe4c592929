"""From a table of TOML or JSON to a frozen dataclass, strictly.

An unknown key is an error that names the nearest known one, a wrong type an error that says
what was expected. A dataclass field's metadata may carry `check`, a pair of a predicate and
what it demands, in words; and `added`, for a key that joined a format later (`content_of`).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from andread.rundir.errors import ConfigError

T = TypeVar("T")
Check = tuple[Callable[[Any], bool], str]

POSITIVE: Check = (lambda value: value > 0, "greater than 0")
NOT_NEGATIVE: Check = (lambda value: value >= 0, "0 or more")
FRACTION: Check = (lambda value: 0 <= value <= 1, "from 0 to 1")


def at_least(minimum: float) -> Check:
    """Demand a number of `minimum` or more."""
    return (lambda value: value >= minimum, f"{minimum} or more")


def one_of(*choices: str) -> Check:
    """Demand one of the named words."""
    return (lambda value: value in choices, "one of " + ", ".join(choices))


def setting(
    default: Any = dataclasses.MISSING, *, check: Check | None = None, added: bool = False
) -> Any:
    """Declare a dataclass field of a settings table, with its default and its check.

    `added` marks a key that joined a hashed format after files of that format had been written.
    """
    metadata = {"check": check, "added": added}
    return dataclasses.field(default=default, metadata=metadata)


def content_of(settings: Any) -> dict[str, Any]:
    """Return a settings dataclass as a table, deeply, for a hash that must hold for years.

    An added key is left out while it has its default, so what was hashed before it came keeps its
    hash. All others are written out, so a default may change and old files mean what they meant.
    """
    content = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if not (field.metadata.get("added") and value == field.default):
            content[field.name] = content_of(value) if dataclasses.is_dataclass(value) else value
    return content


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean "…"?)` for the known word nearest to `word`, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f' (did you mean "{close[0]}"?)' if close else ""


def read_table(cls: type[T], table: Mapping[str, Any], where: str) -> T:
    """Make a `cls` from `table`; `where` names the table in errors, as in `[optimizer]`.

    Raises `ConfigError` for an unknown or missing key, a wrong type or a failed check.
    """
    if not isinstance(table, Mapping):
        raise _wrong(table, "a table", where)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = _hints(cls)  # type: ignore[arg-type]  # a class can be hashed
    for key in table:
        if key not in fields:
            raise ConfigError(
                f'{where}: unknown key "{key}"{nearest(key, fields)}',
                f"known keys: {', '.join(fields)}",
            )
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in table:
            value = _converted(table[name], hints[name], f"{where} {name}")
            check: Check | None = field.metadata.get("check")
            if check is not None and value is not None and not check[0](value):
                raise ConfigError(
                    f"{where} {name} = {table[name]!r}: must be {check[1]}", f"edit {where}"
                )
            values[name] = value
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f'{where}: the key "{name}" is missing', f"add it to {where}")
    return cls(**values)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields: worked out once, for it takes a third of a read."""
    return typing.get_type_hints(cls)


def _converted(value: Any, hint: Any, where: str) -> Any:
    """Return `value` as the type `hint`, or raise `ConfigError`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return _converted(value, inner, where)
    if origin is tuple:
        if isinstance(value, (list, tuple)):
            return tuple(_converted(item, arguments[0], where) for item in value)
        raise _wrong(value, "a list", where)
    if origin is dict:
        if isinstance(value, dict):
            return {
                key: _converted(item, arguments[1], f"{where}.{key}") for key, item in value.items()
            }
        raise _wrong(value, "a table", where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            raise _wrong(value, "a finite number", where) from None
    if hint is Any:
        return value
    if type(value) is not hint:
        raise _wrong(value, _NAMES.get(hint, hint.__name__), where)
    if hint is int and not -(2**63) <= value < 2**63:
        raise _wrong(value, "a whole number of 64 bits", where)
    if hint is float and not math.isfinite(value):
        raise _wrong(value, "a finite number", where)
    return value


_NAMES = {int: "a whole number", float: "a number", str: "text in quotes", bool: "true or false"}


def _wrong(value: Any, expected: str, where: str) -> ConfigError:
    return ConfigError(f"{where} = {value!r}: expected {expected}", f"correct {where}")
