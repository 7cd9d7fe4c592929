"""Audits: what the model writes, and how well it predicts text that it is not trained on.

An audit is a function of (weights, seed, step): the same validation windows every time, prompts
continued by top-k draws from a counter generator. It changes nothing in training, and gives way
at once when the run is asked to stop.

Scores of a text, over its generated tokens: `distinct_n`, the share of n-grams that are
different (Li et al., 2016), and `repetition`, the share of 4-grams that stood before in it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from andread import randomness
from andread.curriculum.batches import validation_indices
from andread.curriculum.tokenizer import Tokenizer
from andread.curriculum.tokens import SourceTokens
from andread.engine.interface import Engine
from andread.rundir.settings import Settings

_PROMPT_TOKENS: Final = 16
_WINDOWS_AT_A_TIME: Final = 8


class Interrupted(Exception):  # noqa: N818 - no error: the run is asked to stop
    """The audit gave way; nothing was recorded."""


@dataclass(frozen=True)
class Prompt:
    """What a generation continues, and the source that it was taken from, if any."""

    tokens: tuple[int, ...]
    source: str


class Auditor:
    """Audits one run. Made once; `audit` is called at step boundaries."""

    def __init__(
        self,
        engine: Engine,
        sources: Sequence[SourceTokens],
        tokenizer: Tokenizer,
        settings: Settings,
        stopping: Callable[[], bool],
        beat: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._sources = sources
        self._tokenizer = tokenizer
        self._settings = settings
        self._stopping = stopping
        self._beat = beat
        seed, count = settings.run.seed, settings.audit.validation_windows
        self._indices = [validation_indices(source, seed, count) for source in sources]
        self._prompts = self._own_prompts() or self._validation_prompts()

    def audit(self, step: int) -> dict[str, Any]:
        """Return the audit after `step`, for .samples.json; raise `Interrupted` to give way."""
        begun = time.monotonic()
        validation = {
            source.name: self._loss(source, indices)
            for source, indices in zip(self._sources, self._indices, strict=True)
            if indices
        }
        samples = [self._sample(step, place) for place in range(len(self._prompts))]
        return {
            "step": step,
            "t": round(time.time(), 3),
            "seconds": round(time.monotonic() - begun, 3),
            "validation": validation,
            "mean": math.fsum(validation.values()) / len(validation) if validation else None,
            "samples": samples,
        }

    def _loss(self, source: SourceTokens, indices: Sequence[int]) -> float:
        """Return the mean loss in nats a token over the fixed validation windows of `source`."""
        losses: list[float] = []
        for start in range(0, len(indices), _WINDOWS_AT_A_TIME):
            self._give_way()
            chosen = indices[start : start + _WINDOWS_AT_A_TIME]
            windows = np.stack([source.validation.window(index) for index in chosen])
            losses += self._engine.evaluate(windows)
        return math.fsum(losses) / len(losses)

    def _sample(self, step: int, place: int) -> dict[str, Any]:
        """Continue one prompt."""
        prompt, settings = self._prompts[place], self._settings.audit
        stream = randomness.key(self._settings.run.seed, "audit", place)
        generation = self._engine.generation(prompt.tokens)
        tokens: list[int] = []
        room = self._settings.model.context - len(prompt.tokens)
        for slot in range(min(settings.tokens, room)):
            self._give_way()
            candidates, logits = generation.candidates(settings.top_k, self._tokenizer.size)
            point = randomness.uniform(stream, step, slot)
            token = candidates[choose(logits, settings.temperature, point)]
            if token == self._tokenizer.separator:
                break
            tokens.append(token)
            generation.extend(token)
        return {
            "source": prompt.source,
            "prompt": self._tokenizer.decode(prompt.tokens),
            "text": self._tokenizer.decode(tokens),
            **scores(tokens),
        }

    def _own_prompts(self) -> list[Prompt]:
        """Return the prompts of run.toml, cut so that there is room to continue them."""
        if not self._engine.can_generate:
            return []
        longest = max(1, self._settings.model.context // 2)
        encoded = self._tokenizer.encode(self._settings.audit.prompts)
        return [Prompt(tuple(tokens[-longest:]), "") for tokens in encoded if tokens]

    def _validation_prompts(self) -> list[Prompt]:
        """Return the start of the first validation window of each source."""
        if not self._engine.can_generate:
            return []
        length = min(_PROMPT_TOKENS, self._settings.model.context // 2)
        return [
            Prompt(tuple(source.validation.window(indices[0])[:length].tolist()), source.name)
            for source, indices in zip(self._sources, self._indices, strict=True)
            if indices and length
        ]

    def _give_way(self) -> None:
        self._beat()
        if self._stopping():
            raise Interrupted


def choose(logits: Sequence[float], temperature: float, point: float) -> int:
    """Return which of `logits`, best first, `point` in [0, 1) falls on after a softmax."""
    weights = [math.exp((logit - logits[0]) / temperature) for logit in logits]
    reached, aim = 0.0, point * math.fsum(weights)
    for place, weight in enumerate(weights):
        reached += weight
        if aim < reached:
            return place
    return 0


def scores(tokens: Sequence[int]) -> dict[str, float]:
    """Return the scores of a generated text; 0 for what it is too short for."""
    distinct = {f"distinct_{n}": round(_distinct(tokens, n), 4) for n in (1, 2, 3)}
    fours = _distinct(tokens, 4)
    return {**distinct, "repetition": round(1.0 - fours, 4) if fours else 0.0}


def _distinct(tokens: Sequence[int], n: int) -> float:
    grams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0
