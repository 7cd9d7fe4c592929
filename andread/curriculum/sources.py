"""One pass over a source: its documents, streamed in pieces, and what had to be left out.

Whatever the format, a document longer than `PIECE` bytes is cut at a line end if there is one,
else between two characters, so that memory stays bounded however large a file is. What cannot be
used (a file that cannot be opened, text that is not UTF-8, a broken JSON line) is left out, counted
and named; a source of which nothing is left is an error.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import orjson

from andread.curriculum.inputs import Input, open_input
from andread.rundir.errors import ConfigError, DataError, from_os_error
from andread.rundir.manifest import Skipped
from andread.rundir.settings import SourceSettings

PIECE: Final = 64 << 10
"""The longest piece of a document, in bytes."""

LINE: Final = 64 << 20
"""The longest line of a jsonl file that is read, in bytes."""

BLOCK: Final = 1 << 14
"""Tokens a block of a source that comes as tokens: about what a piece of text gives."""

NAMES: Final = 5
"""How many of the things left out for one reason are named."""


@dataclass(frozen=True)
class Piece:
    """A document, or a part of one that is too long to be held whole."""

    document: int
    """Counts the documents of the source, those left out included."""
    text: str


class Reader:
    """One pass over the documents of `source`, in the order of its `inputs`.

    While iterating, `documents` counts the documents kept, `done` the input bytes behind, and
    `skipped` what was left out, by reason.
    """

    def __init__(self, source: SourceSettings, inputs: Sequence[Input]) -> None:
        self.source = source
        self.inputs = inputs
        self.total = sum(entry.size for entry in inputs)
        self.documents = 0
        self.done = 0
        self.skipped: dict[str, Skipped] = {}
        self._next = 0  # the ordinal of the next document, kept or not

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of all documents.

        Raises `DataError` if there are none, `ConfigError` for a wrong `text_key` of parquet.
        """
        read = {"text": self._text, "jsonl": self._jsonl, "parquet": self._parquet}
        for entry, stream in self._opened():
            try:
                yield from read[self.source.format](entry, stream)
            except OSError as error:
                raise from_os_error(error, f"reading {self._of(entry)}") from error
        self._not_empty()

    def blocks(self, vocabulary: int) -> Iterator[npt.NDArray[np.uint16]]:
        """Yield the tokens of a source of format tokens, in blocks of at most `BLOCK`.

        Raises `DataError` for an odd size or a token that is not below `vocabulary`.
        """
        for entry, stream in self._opened():
            position = 0
            while data := stream.read(2 * BLOCK):
                if len(data) % 2:
                    raise DataError(
                        f"{self._of(entry)} has an odd number of bytes",
                        "it must hold little-endian uint16 tokens and nothing else",
                    )
                tokens = np.frombuffer(data, dtype="<u2")
                if tokens.max() >= vocabulary:
                    at = int(np.argmax(tokens >= vocabulary))
                    raise DataError(
                        f"{self._of(entry)}: token {tokens[at]} at {position + at} is not below "
                        f"the vocabulary of {vocabulary:,}",
                        "was it made with another tokenizer, or does it have a header?",
                    )
                position += len(tokens)
                self.documents += 1
                self.done += len(data)
                yield tokens
        self._not_empty()

    def _opened(self) -> Iterator[tuple[Input, BinaryIO]]:
        """Yield every input that can be opened; count the others."""
        behind = 0
        for entry in self.inputs:
            with contextlib.ExitStack() as stack:
                try:
                    stream = stack.enter_context(open_input(entry))
                except OSError as error:
                    self._skip("unreadable file", f"{entry.name} ({error.strerror or error})")
                    stream = None
                if stream is not None:
                    yield entry, stream
            behind += entry.size
            self.done = behind

    def _text(self, entry: Input, stream: BinaryIO) -> Iterator[Piece]:
        before = self.done
        for piece in self._document(entry.name, stream):
            self.done = before + stream.tell()
            yield piece

    def _jsonl(self, entry: Input, stream: BinaryIO) -> Iterator[Piece]:
        before = self.done
        lines = gzip.GzipFile(fileobj=stream) if entry.name.endswith(".gz") else stream
        number = 0
        try:
            while line := lines.readline(LINE + 1):
                number += 1
                where = f"{entry.name}:{number}"
                if len(line) > LINE:
                    while not line.endswith(b"\n") and (line := lines.readline(LINE)):
                        pass
                    self._skip(f"line longer than {LINE:,} bytes", where)
                    continue
                self.done = before + stream.tell()
                text = self._text_of(line, where)
                if text is not None:
                    yield from self._document(where, io.BytesIO(text.encode()))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self._skip("damaged gzip file", f"{entry.name} after line {number} ({error})")

    def _text_of(self, line: bytes, where: str) -> str | None:
        """Return the text of a JSON line; None if it has none."""
        if line.isspace():
            return None
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            self._skip("broken JSON line", where)
            return None
        text = value.get(self.source.text_key) if isinstance(value, dict) else None
        if isinstance(text, str):
            return text
        self._skip(f'JSON line without text under "{self.source.text_key}"', where)
        return None

    def _parquet(self, entry: Input, stream: BinaryIO) -> Iterator[Piece]:
        pyarrow, parquet = _import_pyarrow()
        before, row = self.done, 0
        try:
            file = parquet.ParquetFile(stream, pre_buffer=False)
            names = file.schema_arrow.names
            if self.source.text_key not in names:
                raise ConfigError(
                    f'{self._of(entry)} has no column "{self.source.text_key}"',
                    f"set text_key to one of: {', '.join(names)}",
                )
            rows = max(1, file.metadata.num_rows)
            for batch in file.iter_batches(batch_size=256, columns=[self.source.text_key]):
                for value in _as_bytes(batch.column(0), pyarrow):
                    row += 1
                    self.done = before + entry.size * row // rows
                    where = f"{entry.name} row {row}"
                    if value is None:
                        self._skip("null", where)
                    else:
                        yield from self._document(where, io.BytesIO(value))
        except pyarrow.ArrowTypeError:
            raise ConfigError(
                f'{self._of(entry)}: column "{self.source.text_key}" does not hold text',
                "set text_key to the column that does",
            ) from None
        except (pyarrow.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's fault, not the file's
            self._skip("damaged parquet file", f"{entry.name} after row {row} ({error})")

    def _document(self, name: str, stream: BinaryIO) -> Iterator[Piece]:
        """Yield the pieces of one document; count it if anything of it is kept."""
        number = self._next
        self._next += 1
        kept = offset = 0
        for data in cut(stream):
            try:
                text = data.decode()
            except UnicodeDecodeError:
                self._skip("not UTF-8", f"{name} at byte {offset:,}" if offset else name)
            else:
                self.documents += not kept
                kept += 1
                yield Piece(number, text)
            offset += len(data)
        if not offset:
            self._skip("empty document", name)

    def _skip(self, reason: str, name: str) -> None:
        name = os.fsencode(name).decode(errors="replace")
        before = self.skipped.get(reason, Skipped(0))
        names = (*before.names, name)[:NAMES]
        self.skipped[reason] = Skipped(before.count + 1, names)

    def _of(self, entry: Input) -> str:
        return f'source "{self.source.name}": {entry.name}'

    def _not_empty(self) -> None:
        if self.documents:
            return
        reasons = "; ".join(
            f"{entry.count} × {reason}: {', '.join(entry.names)}"
            for reason, entry in self.skipped.items()
        )
        raise DataError(
            f'source "{self.source.name}" has nothing to read ({reasons or "its files are empty"})',
            "correct its paths and format in run.toml, or drop it",
        )


def has_one_document(source: SourceSettings, inputs: Sequence[Input]) -> bool:
    """Tell whether `source` is one long document; reads at most the first two."""
    if source.format == "text":
        return len(inputs) == 1
    reader = Reader(source, inputs)
    return all(piece.document == 0 for piece in reader.pieces()) and reader.documents == 1


def cut(stream: BinaryIO) -> Iterator[bytes]:
    """Yield `stream` in pieces of at most `PIECE` bytes, at line ends where there are any."""
    buffer = b""
    while True:
        buffer += stream.read(PIECE + 1 - len(buffer))
        if len(buffer) <= PIECE:
            if buffer:
                yield buffer
            return
        end = buffer.rfind(b"\n", 0, PIECE) + 1 or _character_end(buffer)
        yield buffer[:end]
        buffer = buffer[end:]


def _character_end(buffer: bytes) -> int:
    """Return the last place up to `PIECE` that does not part the bytes of a UTF-8 character."""
    end = PIECE
    while end > PIECE - 4 and buffer[end] & 0xC0 == 0x80:
        end -= 1
    return end if buffer[end] & 0xC0 != 0x80 else PIECE


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            "reading parquet needs pyarrow, which is not installed",
            "pip install 'andread[parquet]'",
        ) from None
    return pyarrow, parquet


def _as_bytes(column: Any, pyarrow: Any) -> list[bytes | None]:
    """Return the values of a text column undecoded, so that one bad value spoils no other."""
    kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
    types = pyarrow.types
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind)):
        raise pyarrow.ArrowTypeError(str(kind))
    values: list[bytes | None] = column.cast(kind).cast(pyarrow.large_binary()).to_pylist()
    return values
