"""data/NAME.json: what the tokens of one source are, and what they were made from.

The manifest is written last and so commits the source: token files without one count for
nothing. `fingerprint` covers what training reads, and nothing else; `inputs`, `recipe` and
`tokenizer` tell whether preparing again would give something else.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from andread.rundir import files
from andread.rundir.errors import ConfigError, DataError, MissingError
from andread.rundir.tables import NOT_NEGATIVE, POSITIVE, one_of, read_table, setting

VERSION: Final = 1

Split = Literal["train", "validation"]
SPLITS: Final[tuple[Split, ...]] = ("train", "validation")

TOKEN_BYTES: Final = {"uint16": 2, "uint32": 4}
"""Bytes a token, little-endian, by dtype."""

_HINT: Final = "remove it and run `andrectl prepare`"


def dtype_for(vocabulary: int) -> str:
    """Return the smallest dtype that holds every token of a vocabulary of that size."""
    return "uint16" if vocabulary <= 1 << 16 else "uint32"


def digest(parts: Iterable[object]) -> str:
    """Return the SHA-256 over `parts`, as hexadecimal text."""
    return hashlib.sha256(
        "\x1f".join(map(str, parts)).encode("utf-8", "surrogateescape")
    ).hexdigest()


def _sha256(value: str) -> bool:
    return len(value) == 64 and set(value) <= set("0123456789abcdef")


_SHA256: Final = (_sha256, "a SHA-256 in hexadecimal")


@dataclass(frozen=True)
class Skipped:
    """What was left out for one reason."""

    count: int = setting(check=POSITIVE)
    """Documents, pieces or files left out."""
    names: tuple[str, ...] = setting(())
    """The first few of them."""


@dataclass(frozen=True)
class Manifest:
    """The counts, hashes and origin of one source's tokens."""

    version: int = setting(check=(lambda v: v == VERSION, f"{VERSION}"))
    source: str = setting()
    dtype: str = setting(check=one_of(*TOKEN_BYTES))
    vocabulary: int = setting(check=POSITIVE)
    """The model's: every token is below it."""
    documents: int = setting(check=POSITIVE)
    """Documents kept; blocks, for a source that came as tokens."""
    train_tokens: int = setting(check=NOT_NEGATIVE)
    train_sha256: str = setting(check=_SHA256)
    validation_tokens: int = setting(check=NOT_NEGATIVE)
    validation_sha256: str = setting(check=_SHA256)
    input_bytes: int = setting(check=NOT_NEGATIVE)
    """Size of all input files, as they lie on the disk."""
    inputs: str = setting(check=_SHA256)
    """Digest of the input files' paths, sizes and modification times."""
    recipe: str = setting(check=_SHA256)
    """Digest of the settings that decide how the inputs become tokens."""
    tokenizer: str = setting(check=_SHA256)
    """SHA-256 of tokenizer.json."""
    fingerprint: str = setting(check=_SHA256)
    """One hash over what training reads: dtype, both token hashes, the unique tokens if counted."""
    unique_tokens: int = setting(0, check=NOT_NEGATIVE)
    """Of the training tokens, those that do not repeat what came before; 0: never counted."""
    skipped: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Reason to `Skipped`."""

    def tokens(self, split: Split) -> int:
        """Return the number of tokens of `split`."""
        return self.train_tokens if split == "train" else self.validation_tokens

    def sha256(self, split: Split) -> str:
        """Return the SHA-256 of the token file of `split`."""
        return self.train_sha256 if split == "train" else self.validation_sha256

    def size(self, split: Split) -> int:
        """Return the size of the token file of `split`, in bytes."""
        return self.tokens(split) * TOKEN_BYTES[self.dtype]

    def windows(self, split: Split, context: int) -> int:
        """Return how many windows of `context` + 1 tokens, overlapping by one, `split` has."""
        return max(0, self.tokens(split) - 1) // context

    @property
    def unique_share(self) -> float:
        """Return the share of the training tokens that are unique; 1 if they were not counted."""
        return self.unique_tokens / self.train_tokens if self.unique_tokens else 1.0


def fingerprint_of(
    dtype: str, train_sha256: str, validation_sha256: str, unique_tokens: int = 0
) -> str:
    """Return the fingerprint of tokens."""
    counted = (unique_tokens,) if unique_tokens else ()
    return digest((dtype, train_sha256, validation_sha256, *counted))


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Put `manifest` under the name `path`, atomically and durably."""
    files.replace_json(path, dataclasses.asdict(manifest))


def read_manifest(path: Path) -> Manifest:
    """Read the manifest at `path`.

    Raises `MissingError` if it is not there, `DataError` if it is damaged or contradicts itself.
    """
    try:
        table = files.read_json(path)
    except FileNotFoundError:
        raise MissingError(f"{path} does not exist", "run `andrectl prepare`") from None
    if not isinstance(table, dict):
        raise DataError(f"{path} is not a table", _HINT)
    try:
        manifest = read_table(Manifest, table, str(path))
        skipped = {
            reason: read_table(Skipped, entry, f"{path} skipped.{reason}")
            for reason, entry in manifest.skipped.items()
        }
    except (ConfigError, TypeError) as error:
        raise DataError(f"damaged manifest: {error}", _HINT) from None
    expected = fingerprint_of(
        manifest.dtype,
        manifest.train_sha256,
        manifest.validation_sha256,
        manifest.unique_tokens,
    )
    if manifest.fingerprint != expected:
        raise DataError(f"{path}: the fingerprint does not match what is beside it", _HINT)
    if manifest.unique_tokens > manifest.train_tokens:
        raise DataError(f"{path}: more unique tokens than tokens", _HINT)
    if manifest.dtype != dtype_for(manifest.vocabulary):
        raise DataError(
            f"{path}: dtype {manifest.dtype} contradicts a vocabulary of {manifest.vocabulary:,}",
            _HINT,
        )
    return dataclasses.replace(manifest, skipped=skipped)
