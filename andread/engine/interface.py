"""What the trainer sees of an engine; the flat engine is one implementation of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from andread.rundir.companion import Companion
from andread.rundir.settings import OptimizerSettings

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class StepResult:
    """What one step gave, on the host.

    `loss` is the mean over the batch and `losses` that of each sequence, in nats; `grad_norm` is
    the norm before clipping. `applied` tells whether the optimizer took the step; `overflow`
    whether it did not for a mere overflow of the loss scaler.
    """

    loss: float
    grad_norm: float
    losses: tuple[float, ...]
    applied: bool
    overflow: bool


class PendingStep(Protocol):
    """A step that was launched and whose numbers may still be on the device."""

    def read(self) -> StepResult:
        """Wait for the step and return its numbers."""


class Snapshot(Protocol):
    """Weights, m and v as they were right after a step."""

    @property
    def step(self) -> int:
        """Return the step."""

    def image(self) -> memoryview:
        """Return the checkpoint file, once it is complete; valid until the next snapshot.

        May be called in another thread while training goes on.
        """


class Engine(Protocol):
    """A model with its optimizer on whatever devices it takes."""

    n_params: int
    environment: dict[str, Any]
    can_generate: bool

    def under(self, optimizer: OptimizerSettings) -> None:
        """Train under `optimizer` from the next step on."""

    def step(self, windows: Tokens, step: int, lr: float) -> PendingStep:
        """Train on `windows`, int64 [batch, context + 1], as step `step` at rate `lr`."""

    def evaluate(self, windows: Tokens) -> list[float]:
        """Return the loss in nats of each of `windows`, int64 [count, context + 1]."""

    def generation(self, prompt: Sequence[int]) -> Generation:
        """Begin a generation that continues `prompt`."""

    def snapshot(self, step: int) -> Snapshot:
        """Keep the state right after `step`: training may go on at once."""

    def load(self, path: Path, companion: Companion) -> str:
        """Read a checkpoint into the engine; return the file's SHA-256.

        Raises `InvalidCheckpoint`; the engine must then load another before it is used.
        """

    def scaler_state(self) -> dict[str, Any]:
        """Return the loss scaler's state for a companion."""


class Generation(Protocol):
    """A text being generated token by token."""

    def candidates(self, k: int, valid: int) -> tuple[list[int], list[float]]:
        """Return the `k` likeliest next tokens below id `valid`, with their logits, best first."""

    def extend(self, token: int) -> None:
        """Take `token` as the next one."""
