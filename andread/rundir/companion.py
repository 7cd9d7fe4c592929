"""`step_NNNNNN.json`: what a checkpoint needs beside it to be resumed from.

Written before its .bin gets its final name, so a .bin under that name has all it needs. Beside
the .bin it is the only source of truth for a resume, so it carries a checksum of its own content.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from andread.rundir import files
from andread.rundir.errors import AndreadError, DataError
from andread.rundir.tables import NOT_NEGATIVE, POSITIVE, Check, read_table, setting

FORMAT: Final = 1
_SHA256: Final[Check] = (
    lambda v: len(v) == 64 and set(v) <= set("0123456789abcdef"),
    "64 hexadecimal digits",
)


_FORMAT: Final[Check] = (lambda v: v == FORMAT, f"{FORMAT}")


@dataclass(frozen=True)
class _Version:
    """What is read first: the keys of another version are not judged by this one."""

    format: int = setting(check=_FORMAT)


@dataclass(frozen=True)
class Companion:
    """Everything of a step boundary that is not weights, m or v."""

    step: int = setting(check=NOT_NEGATIVE)
    """The step after which the checkpoint was taken."""
    n_params: int = setting(check=POSITIVE)
    """Parameters of the model."""
    sha256: str = setting(check=_SHA256)
    """SHA-256 of the .bin, as `sha256sum` prints it."""
    history_length: int = setting(check=NOT_NEGATIVE)
    """Bytes of .loss.json up to the end of this step's entry."""
    history_sha256: str = setting(check=_SHA256)
    """SHA-256 of those bytes."""
    policy: str = setting()
    """Id of the policy that the curriculum's state belongs to."""
    reasons: tuple[str, ...] = setting()
    """Why it was written: start, cadence, signal, pivot, stop, end, import."""
    t: float = setting()
    """Unix seconds at the boundary."""
    requests: tuple[str, ...] = setting(())
    """Ids of the requests that it serves."""
    curriculum: dict[str, Any] = field(default_factory=dict)
    """The mixer's whole state and the position of each source, in windows trained on."""
    scaler: dict[str, Any] = field(default_factory=dict)
    """State of the loss scaler (fp16)."""
    counters: dict[str, Any] = field(default_factory=dict)
    """Steps skipped and spiking, and the moving average that tells a spike."""
    trajectory: dict[str, Any] = field(default_factory=dict)
    """The settings that may not drift (`Settings.trajectory`)."""
    data: dict[str, str] = field(default_factory=dict)
    """Fingerprint of each source's tokens."""
    environment: dict[str, Any] = field(default_factory=dict)
    """What the bits depend on beside all that: device, threads, versions."""
    format: int = setting(FORMAT, check=_FORMAT)
    """Version of this format."""


def read(path: Path) -> Companion:
    """Read a companion; `DataError` or `ConfigError` if damaged, `OSError` if unreadable."""
    value = files.read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path} is not a companion", "it is damaged")
    try:
        read_table(_Version, {"format": value.get("format", FORMAT)}, path.name)
        if value.pop("checksum", None) != _checksum(value):
            raise DataError(f"{path.name} is not as it was written: its checksum differs")
        return read_table(Companion, value, path.name)
    except AndreadError as error:
        raise DataError(error.message, error.hint) from None


def write(path: Path, companion: Companion) -> None:
    """Write a companion, atomically and durably."""
    files.replace_json(path, sealed(dataclasses.asdict(companion)))


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Return `content` with the checksum that `read` demands."""
    return {**content, "checksum": _checksum(content)}


def _checksum(content: dict[str, Any]) -> str:
    """Return the SHA-256 of `content` as compact JSON with sorted keys."""
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
