"""What a run will take, from its settings alone: disk, memory, tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from andread.rundir import checkpoint
from andread.rundir.settings import Settings

_HISTORY_ENTRY: Final = 180
"""Bytes of one entry of the loss history, for a few sources."""
TRAINING: Final = 16
"""Bytes a parameter in training: float32 weight, gradient, m and v."""
STAGING: Final = 12
"""Bytes a parameter of the staging buffer that a checkpoint is written from."""


@dataclass(frozen=True)
class Cost:
    """Bytes and tokens."""

    parameters: int
    checkpoint_bytes: int
    checkpoints: int
    """Checkpoint files at steady state, with the one being written."""
    disk_bytes: int
    training_bytes: int
    """Weights, gradients, m and v, on the device."""
    staging_bytes: int
    """The staging buffer, in host memory."""
    tokens_per_step: int
    tokens: int


def cost(settings: Settings) -> Cost:
    """Return what `settings` will take at steady state."""
    n_params = settings.model.n_params
    run = settings.run
    image = checkpoint.file_size(n_params)
    written = range(0, run.steps + 1, run.checkpoint_every)
    every = {step for step in written if run.keep_every and step % run.keep_every == 0}
    kept = len(every | set(written[-run.keep_last :]))
    per_step = settings.optimizer.batch * settings.model.context
    return Cost(
        parameters=n_params,
        checkpoint_bytes=image,
        checkpoints=kept + 1,
        disk_bytes=(kept + 1) * image + run.steps * _HISTORY_ENTRY,
        training_bytes=TRAINING * n_params,
        staging_bytes=STAGING * n_params,
        tokens_per_step=per_step,
        tokens=per_step * run.steps,
    )
