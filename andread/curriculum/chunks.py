"""Pieces and blocks to tokens, parted into training and validation.

Each document is followed by the separator. It goes to validation as a whole: of every 1 / share
documents one is drawn, keyed by source name and not by the run's seed, so that runs of different
seeds are judged on the same text. The pieces of a lone document are documents of their own, and
so are the blocks of a source that comes as tokens. The first document always trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from andread import randomness
from andread.curriculum.sources import Reader, has_one_document
from andread.curriculum.tokenizer import Tokenizer
from andread.rundir.manifest import SPLITS, Split, dtype_for

BATCH: Final = 1 << 20
"""Characters encoded at once: larger batches gain no speed and cost memory."""


@dataclass(frozen=True)
class _Unit:
    """A piece on its way to a split; `ends` says that its document ends with it."""

    text: str
    split: Split
    ends: bool


class Chunks:
    """The tokens of a source, chunk by chunk.

    `share` is that of validation; `poll` is called often, and may raise to stop.
    """

    def __init__(
        self, reader: Reader, share: float, vocabulary: int, poll: Callable[[], None]
    ) -> None:
        self._reader = reader
        self._share = share
        self._vocabulary = vocabulary
        self._dtype = np.dtype(dtype_for(vocabulary)).newbyteorder("<")
        self._poll = poll
        self._stream = randomness.key(0, "validation", reader.source.name)

    def after(self, behind: int, tokenizer: Tokenizer) -> Iterator[tuple[int, dict[Split, bytes]]]:
        """Yield (units so far, tokens by split), leaving out the first `behind` units.

        A unit is a piece or a block; what is left out is read again, but not encoded.
        """
        if self._reader.source.format == "tokens":
            return self._blocks(behind)
        return self._encoded(behind, tokenizer)

    def _split(self, number: int) -> Split:
        """Return where document `number` goes; the first one trains."""
        if number == 0:
            return "train"
        if self._share > 0.5:
            return "train" if self._drawn(number, 1 - self._share) else "validation"
        return "validation" if self._drawn(number, self._share) else "train"

    def _drawn(self, number: int, share: float) -> bool:
        """Tell whether `number` is the one drawn of its stretch of 1 / `share` documents.

        A draw for each document on its own would leave a small source without any, now and then.
        """
        for stretch in {int(number * share), int((number + 1) * share)} if share else ():
            place = (stretch + randomness.uniform(self._stream, stretch)) / share
            if max(1, int(place)) == number:
                return True
        return False

    def _blocks(self, behind: int) -> Iterator[tuple[int, dict[Split, bytes]]]:
        for number, block in enumerate(self._reader.blocks(self._vocabulary)):
            if number % 64 == 0:
                self._poll()
            if number >= behind:
                yield number + 1, {self._split(number): self._packed(block)}

    def _encoded(
        self, behind: int, tokenizer: Tokenizer
    ) -> Iterator[tuple[int, dict[Split, bytes]]]:
        batch: list[_Unit] = []
        number = size = 0
        for number, unit in enumerate(self._units(), 1):
            if number % 256 == 0:
                self._poll()
            if number <= behind:
                continue
            batch.append(unit)
            size += len(unit.text)
            if size >= BATCH:
                yield number, self._encode(batch, tokenizer)
                batch, size = [], 0
        if batch:
            yield number, self._encode(batch, tokenizer)

    def _units(self) -> Iterator[_Unit]:
        """Yield every piece with its split."""
        pieces = self._reader.pieces()
        if has_one_document(self._reader.source, self._reader.inputs):
            for number, piece in enumerate(pieces):
                yield _Unit(piece.text, self._split(number), ends=True)
            return
        before = None
        number = 0
        for piece in pieces:
            if before is not None:
                ends = piece.document != before.document
                yield _Unit(before.text, self._split(number), ends)
                number += ends
            before = piece
        if before is not None:
            yield _Unit(before.text, self._split(number), ends=True)

    def _encode(self, batch: Sequence[_Unit], tokenizer: Tokenizer) -> dict[Split, bytes]:
        ids: dict[Split, list[int]] = {split: [] for split in SPLITS}
        encoded = tokenizer.encode([unit.text for unit in batch])
        for unit, tokens in zip(batch, encoded, strict=True):
            ids[unit.split] += tokens
            if unit.ends:
                ids[unit.split].append(tokenizer.separator)
        return {split: self._packed(tokens) for split, tokens in ids.items() if tokens}

    def _packed(self, tokens: Sequence[int] | npt.NDArray[Any]) -> bytes:
        return np.asarray(tokens, self._dtype).tobytes()
