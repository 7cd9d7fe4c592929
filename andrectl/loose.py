"""Reading what may be damaged, for those who only look: nothing here raises.

A `Reader` keeps the list of what was wrong, file by file, to be shown beside the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from andread.rundir import files
from andread.rundir.errors import AndreadError, from_os_error

T = TypeVar("T")
Table = dict[str, Any]


class Reader:
    """Reads files and remembers which of them are damaged."""

    def __init__(self) -> None:
        self.damaged: list[dict[str, str]] = []

    def blame(self, path: Path, problem: str) -> None:
        """Remember that the file at `path` has `problem`."""
        found = {"file": path.name, "problem": problem.replace(f"{path} ", "", 1)}
        if found not in self.damaged:
            self.damaged.append(found)

    def attempt(self, path: Path, read: Callable[[], T]) -> T | None:
        """Return `read()`, None if the file at `path` is missing or damaged."""
        try:
            return read()
        except FileNotFoundError:
            return None
        except AndreadError as error:
            self.blame(path, error.message)
        except OSError as error:
            self.blame(path, from_os_error(error, "reading").message)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self.blame(path, f"is not what it should be ({error})")
        return None

    def table(self, path: Path) -> Table:
        """Return the JSON object in the file at `path`, an empty one if there is none."""
        value = self.attempt(path, lambda: files.read_json(path))
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.blame(path, "is not a JSON object")
            return {}
        return value


def file_size(path: Path) -> int:
    """Return the size of the file at `path` in bytes, 0 if it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def number(value: Any) -> float | None:
    """Return `value` if it is a finite number, else None."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return value
    return None


def whole(value: Any) -> int:
    """Return `value` as a whole number, 0 if it is none."""
    found = number(value)
    return 0 if found is None else int(found)


def table(value: Any) -> Table:
    """Return `value` if it is a table, else an empty one."""
    return value if isinstance(value, dict) else {}


def tables(value: Any) -> list[Table]:
    """Return the tables in the list `value`."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(value: Any) -> str:
    """Return `value` as text, on one line and without control characters; empty for None."""
    shown = "" if value is None else str(value)
    return "".join(c if c.isprintable() else " " for c in shown)
