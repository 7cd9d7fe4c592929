"""`.samples.json`: recent audits, bounded, of one policy.

{"format": 1, "policy": id, "audits": [{"step", "t", "seconds", "validation": {source: loss},
 "mean", "samples": [{"source", "prompt", "text", "distinct_1", …, "repetition"}]}]}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from andread.rundir import files
from andread.rundir.errors import DataError

FORMAT: Final = 1


def read(path: Path) -> dict[str, Any]:
    """Return the file's content, an empty one if it is not there; `DataError` if damaged."""
    try:
        content = files.read_json(path)
    except FileNotFoundError:
        return {"format": FORMAT, "policy": "", "audits": []}
    if (
        not isinstance(content, dict)
        or content.get("format") != FORMAT
        or not isinstance(content.get("audits"), list)
        or not all(
            isinstance(a, dict) and isinstance(a.get("step"), int) for a in content["audits"]
        )
    ):
        raise DataError(f"{path} is not a list of audits", "it is damaged; audits go on without it")
    return content


def write(path: Path, policy: str, audits: list[dict[str, Any]]) -> None:
    """Replace the file's content."""
    files.replace_json(path, {"format": FORMAT, "policy": policy, "audits": audits})
