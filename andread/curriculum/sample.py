"""What the tokenizer is trained on: a bounded sample, even over sources and within each.

Each source gives every k-th of its pieces, k being the power of two that fits its share. The
memory of BPE training goes by the distinct words, not by the text (64 MiB of Python code took
200 MB, 64 MiB of random letters 4.6 GB), so those are bounded too. Nothing is drawn from the
process's own randomness: the same inputs give the same sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from andread import randomness
from andread.curriculum.inputs import Input
from andread.curriculum.sources import Reader
from andread.rundir.settings import SourceSettings

BUDGET: Final = 64 << 20
"""Characters of text in the whole sample."""

NOVEL: Final = 8 << 20
"""Characters of distinct words in the whole sample."""

_OVERHEAD: Final = 64
"""What a piece costs beyond its characters, so that millions of tiny ones stay bounded."""

_WORD: Final = re.compile(r"\w{1,32}|[^\w\s]{1,32}")


def shares(sizes: Sequence[int], budget: int) -> list[int]:
    """Part `budget` evenly over sources of these sizes; what small ones leave goes to others."""
    parts = [0] * len(sizes)
    left = budget
    for rank, index in enumerate(sorted(range(len(sizes)), key=lambda i: sizes[i])):
        parts[index] = min(sizes[index], left // (len(sizes) - rank))
        left -= parts[index]
    return parts


def sample(
    sources: Sequence[tuple[SourceSettings, Sequence[Input]]], poll: Callable[[Reader], None]
) -> list[str]:
    """Return the texts to train on; `poll` is called with the reader now and then."""
    floor = BUDGET // (8 * len(sources))  # compressed files are larger than they look
    sizes = [max(floor, sum(entry.size for entry in inputs)) for _, inputs in sources]
    texts: list[str] = []
    for (source, inputs), share in zip(sources, shares(sizes, BUDGET), strict=True):
        texts += every_kth(Reader(source, inputs), share, poll)
    return list(bounded(texts, NOVEL))


def every_kth(reader: Reader, budget: int, poll: Callable[[Reader], None]) -> list[str]:
    """Return every k-th piece of `reader`, k being the least power of two that fits `budget`."""
    kept: list[str] = []
    size, k = 0, 1
    for number, piece in enumerate(reader.pieces()):
        if number % 256 == 0:
            poll(reader)
        if number % k:
            continue
        kept.append(piece.text)
        size += len(piece.text) + _OVERHEAD
        while size > budget and len(kept) > 1:
            kept = kept[::2]
            k *= 2
            size = sum(len(text) + _OVERHEAD for text in kept)
    return kept


def bounded(texts: Sequence[str], novel: int) -> Iterator[str]:
    """Yield `texts` in a scattered order until their distinct words make up `novel` characters."""
    if not texts:
        return
    order = randomness.Permutation(len(texts), randomness.key(0, "tokenizer sample"))
    seen: set[str] = set()
    size = 0
    for index in range(len(texts)):
        text = texts[order(index)]
        yield text
        new = set(_WORD.findall(text)) - seen
        seen |= new
        size += sum(map(len, new))
        if size > novel:
            return
