"""Unique tokens: against a plain count, whatever the parts they come in."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from andread.curriculum import unique
from andread.curriculum.unique import RUN, UniqueTokens

Tokens = NDArray[np.uint16]


def text(length: int, vocabulary: int = 500, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(0, vocabulary, length).astype(np.uint16)


def counted(parts: Iterable[Tokens]) -> int:
    counter = UniqueTokens()
    for part in parts:
        counter.see(part)
    return counter.count()


def plain(tokens: Tokens) -> int:
    runs = len(tokens) - RUN + 1
    return round(len({tokens[i : i + RUN].tobytes() for i in range(runs)}) * len(tokens) / runs)


@pytest.mark.parametrize(
    "tokens",
    [
        text(20_000),
        np.tile(text(700), 40),
        np.zeros(5_000, np.uint16),
        text(90_000, vocabulary=2),
        np.concatenate([text(30_000), text(10_000, seed=1), text(30_000)]),
        text(RUN),
    ],
    ids=[
        "random",
        "one text over and over",
        "one token",
        "two tokens",
        "half of it twice",
        "short",
    ],
)
def test_the_count_is_that_of_a_set_of_all_runs(tokens: Tokens) -> None:
    assert counted([tokens]) == plain(tokens)


def test_less_than_one_run_is_unique() -> None:
    assert counted([]) == 0
    assert counted([np.zeros(RUN - 1, np.uint16)]) == RUN - 1


@pytest.mark.parametrize("size", [1, 31, 32, 1_000, unique.CHUNK + 1])
def test_the_parts_do_not_matter(size: int) -> None:
    tokens = np.tile(text(3_000 if size == 1 else 50_000), 2)
    assert counted(tokens[i : i + size] for i in range(0, len(tokens), size)) == plain(tokens)


def test_the_kind_of_integers_does_not_matter() -> None:
    tokens = text(5_000)
    assert counted([tokens.astype("<u4")]) == counted([tokens]) == plain(tokens)


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_large_source_is_counted_closely_in_bounded_memory(repeats: int) -> None:
    """A million unique tokens: some six standard errors of 0.4 %."""
    tokens = text(1_000_000, vocabulary=30_000)
    counter = UniqueTokens()
    for _ in range(repeats):
        for part in np.split(tokens, 20):
            counter.see(part)
            assert len(counter._kept) <= unique.KEPT
            assert sum(map(len, counter._new)) <= unique.KEPT
    assert counter.count() == pytest.approx(1_000_000, rel=0.02)


def test_the_order_of_a_large_source_does_not_matter() -> None:
    """But for the seams. Each part comes twice, so that a count of all tokens would be wrong."""
    parts = [np.tile(text(200_000, 30_000, seed), 2) for seed in range(4)]
    seams = 4 * (RUN - 1) * 2 / 800_000
    assert counted(parts) == pytest.approx(counted(reversed(parts)), rel=seams)
    assert counted(parts) == pytest.approx(800_000, rel=0.02)
