"""The engine on one device: the model's parameters in a flat store, one fused optimizer call."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from andread.engine import environment
from andread.engine.interface import StepResult, Tokens
from andread.engine.model import build
from andread.engine.optimizer import LossScaler, Optimizer
from andread.engine.snapshot import Copier, FlatSnapshot
from andread.engine.store import FlatStore
from andread.rundir import checkpoint
from andread.rundir.companion import Companion
from andread.rundir.early import EarlyRead
from andread.rundir.settings import OptimizerSettings, Settings
from andread.rundir.staging import Staging

_DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class FlatEngine:
    """See `interface.Engine`."""

    def __init__(
        self,
        settings: Settings,
        device: torch.device,
        threads: int,
        early: EarlyRead | None = None,
    ) -> None:
        """Build the model on `device`; what `early` has read by then need not be read again."""
        self.settings = settings
        self.device = device
        self._early = early
        precision = environment.resolve_precision(settings.engine.precision, device)
        self._dtype = _DTYPES[precision]
        self.model = build(settings.model, settings.run.seed).to(device)
        self.store = FlatStore(self.model, device)
        self.n_params = self.store.n_params
        self._copier = Copier(
            early.staging(self.n_params) if early else Staging(self.n_params), device
        )
        self._scaler = LossScaler(device, enabled=precision == "fp16")
        self._optimizer = Optimizer(self.store, settings.optimizer, self._scaler)
        self._forward: nn.Module = self.model
        if settings.engine.compile:
            self._forward = torch.compile(self.model)  # type: ignore[assignment]
        self.can_generate = hasattr(self.model, "logits") and hasattr(self.model, "new_cache")
        self.environment = environment.describe(device, precision, threads, settings.engine)
        self.under(settings.optimizer)

    def under(self, optimizer: OptimizerSettings) -> None:
        """Take the settings of the next steps; see `interface.Engine.under`."""
        self._optimizer.settings = optimizer
        self._micro_batch = self.settings.engine.micro_batch or optimizer.batch

    def step(self, windows: Tokens, step: int, lr: float) -> _FlatStep:
        """Train on one batch; see `interface.Engine.step`."""
        batch = self._to_device(windows)
        self.store.gradients.zero_()
        parts = []
        scale = self._scaler.scale
        for micro in torch.split(batch, self._micro_batch):
            with self._autocast():
                losses = self._forward(micro[:, :-1], micro[:, 1:])
            (losses.sum() * (scale / len(batch))).backward()
            parts.append(losses.detach())
        losses = torch.cat(parts)
        loss = losses.mean()
        self._copier.wait_on_device()
        norm, found_inf = self._optimizer.apply(step, lr, loss)
        return _FlatStep(torch.cat([torch.stack([loss, norm, found_inf, scale]), losses]))

    @torch.no_grad()
    def evaluate(self, windows: Tokens) -> list[float]:
        """Return the loss of each window; see `interface.Engine.evaluate`."""
        losses: list[float] = []
        for micro in torch.split(torch.from_numpy(windows), self._micro_batch):
            moved = micro.to(self.device)
            with self._autocast():
                losses += self.model(moved[:, :-1], moved[:, 1:]).tolist()
        return losses

    def generation(self, prompt: Sequence[int]) -> _FlatGeneration:
        """Begin a generation; see `interface.Engine.generation`."""
        return _FlatGeneration(self, prompt)

    def snapshot(self, step: int) -> FlatSnapshot:
        """Keep the state after `step`; see `interface.Engine.snapshot`."""
        return self._copier.copy(self.store, step)

    def load(self, path: Path, companion: Companion) -> str:
        """Read a checkpoint; see `interface.Engine.load`."""
        digest = self._early.take(path) if self._early else None
        if digest is None:
            image = self._copier.staging.file
            digest = checkpoint.read_image(path, companion.step, self.n_params, image)
        self._copier.restore(self.store)
        self._scaler.load(companion.scaler)
        return digest

    def scaler_state(self) -> dict[str, Any]:
        """Return the loss scaler's state; see `interface.Engine.scaler_state`."""
        return self._scaler.state()

    def _to_device(self, windows: Tokens) -> Tensor:
        """Move `windows` to the device, without waiting for it."""
        batch = torch.from_numpy(windows)
        if self.device.type == "cuda":
            batch = batch.pin_memory()
        return batch.to(self.device, non_blocking=True)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, self._dtype, enabled=self._dtype != torch.float32)


class _FlatStep:
    """The numbers of a step in one tensor: loss, norm, found_inf, scale, then the losses."""

    def __init__(self, packed: Tensor) -> None:
        self._packed = packed

    def read(self) -> StepResult:
        loss, norm, found_inf, scale, *losses = self._packed.tolist()
        applied = found_inf == 0.0
        overflow = not applied and scale > 1.0 and loss - loss == 0.0
        return StepResult(loss, norm, tuple(losses), applied, overflow)


class _FlatGeneration:
    """One generation on a cache of keys and values."""

    def __init__(self, engine: FlatEngine, prompt: Sequence[int]) -> None:
        self._engine = engine
        self._cache = engine.model.new_cache(1, engine._dtype)  # type: ignore[operator]
        self._next = list(prompt)

    @torch.no_grad()
    def candidates(self, k: int, valid: int) -> tuple[list[int], list[float]]:
        tokens = torch.tensor([self._next], device=self._engine.device)
        with self._engine._autocast():
            logits: Tensor = self._engine.model.logits(tokens, self._cache)  # type: ignore[operator]
        values, indices = logits[0, :valid].topk(min(k, valid))
        return indices.tolist(), values.tolist()

    def extend(self, token: int) -> None:
        self._next = [token]
