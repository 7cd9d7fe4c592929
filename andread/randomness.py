"""Randomness as a function of (seed, purpose, step, slot); no generator carries state.

Library streams promise nothing across versions, so both generators are ours and their golden
values are tested:

- `bits` and `uniform`: SplitMix64 (Steele, Lea and Flood, 2014) used as a counter generator;
- `Permutation`: a balanced Feistel network over the next even power of two, cycle-walked down
  to any n (Black and Rogaway, 2002), with O(1) seek in both senses of the word: no table, no
  state.
"""

from __future__ import annotations

import hashlib
from typing import Final

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """Return SplitMix64's output function of a 64-bit `value`: a bijection, well scattered."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def key(seed: int, *labels: str | int) -> int:
    """Return the 64-bit key of a stream, from the run's seed and the labels of its purpose."""
    text = "\x1f".join([str(seed), *map(str, labels)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def bits(stream: int, step: int, slot: int = 0) -> int:
    """Return 64 bits: slot `slot` of step `step` of the stream with key `stream`."""
    state = mix((stream + _GOLDEN * (step + 1)) & _MASK)
    return mix((state + _GOLDEN * (slot + 1)) & _MASK)


def uniform(stream: int, step: int, slot: int = 0) -> float:
    """Return a float in [0, 1) with 53 random bits."""
    return (bits(stream, step, slot) >> 11) * 2.0**-53


class Permutation:
    """A keyed permutation of `range(n)`, evaluated at one place at a time in O(1)."""

    ROUNDS: Final = 6

    def __init__(self, n: int, stream: int) -> None:
        if n < 1:
            raise ValueError(f"a permutation of {n} things")
        self.n = n
        self._half = max(1, ((n - 1).bit_length() + 1) // 2)
        self._low = (1 << self._half) - 1
        self._keys = [bits(stream, round_) for round_ in range(self.ROUNDS)]

    def __call__(self, index: int) -> int:
        """Return where `index`, in [0, n), goes."""
        if not 0 <= index < self.n:
            raise ValueError(f"index {index} is outside a permutation of {self.n}")
        while True:  # cycle-walking: leaves [0, n) at most a few times, and always returns to it
            left, right = index >> self._half, index & self._low
            for round_key in self._keys:
                left, right = right, left ^ (mix((right + round_key) & _MASK) & self._low)
            index = (left << self._half) | right
            if index < self.n:
                return index
