"""AdamW on the flat store: clipping, the schedule, the loss scaler, and the skip on the device.

Adam's t is the step itself, set before every call: nothing is carried, and a step that was not
applied advances it too. Whether a step is applied is decided on the device, by the fused
kernel's `found_inf`, in every precision: no transfer is waited for.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from andread.engine.store import FlatStore
from andread.rundir.settings import OptimizerSettings

_SCALE_START: Final = 65536.0
_SCALE_GROWTH_INTERVAL: Final = 2000


def learning_rate(settings: OptimizerSettings, step: int) -> float:
    """Return the rate of `step`, from 1 on: linear warm-up, cosine, then its minimum."""
    minimum = settings.lr * settings.lr_minimum
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    if step >= settings.decay_steps:
        return minimum
    progress = (step - settings.warmup_steps) / (settings.decay_steps - settings.warmup_steps)
    return minimum + (settings.lr - minimum) * (1 + math.cos(math.pi * progress)) / 2


class LossScaler:
    """Keeps float16 gradients in range: doubles every 2,000 good steps, halves at an overflow.

    The rule of torch.amp.GradScaler, with its state in two tensors of ours, so that nothing is
    read back and a checkpoint can carry it. Disabled, the scale stays 1.
    """

    def __init__(self, device: torch.device, enabled: bool) -> None:
        self.enabled = enabled
        self.scale = torch.tensor(_SCALE_START if enabled else 1.0, device=device)
        self.good_steps = torch.tensor(0.0, device=device)

    def update(self, found_inf: Tensor) -> None:
        """Adapt the scale to whether the last step overflowed."""
        if not self.enabled:
            return
        bad = found_inf > 0
        self.good_steps = torch.where(bad, 0.0, self.good_steps + 1)
        grow = self.good_steps >= _SCALE_GROWTH_INTERVAL
        self.scale = torch.where(bad, self.scale / 2, torch.where(grow, self.scale * 2, self.scale))
        self.scale = self.scale.clamp(min=1.0)
        self.good_steps = torch.where(grow, 0.0, self.good_steps)

    def state(self) -> dict[str, Any]:
        """Return the state for a companion."""
        if not self.enabled:
            return {}
        return {"scale": float(self.scale), "good_steps": int(self.good_steps)}

    def load(self, state: dict[str, Any]) -> None:
        """Take up what `state()` returned."""
        if self.enabled and state:
            self.scale.fill_(float(state["scale"]))
            self.good_steps.fill_(float(state["good_steps"]))


class Optimizer:
    """One fused AdamW over the slices of a flat store; `settings` may change between steps."""

    def __init__(self, store: FlatStore, settings: OptimizerSettings, scaler: LossScaler) -> None:
        self.store = store
        self.settings = settings
        self.scaler = scaler
        decayed, plain = store.decay_slices()
        self._groups = [
            (slices, decays, [torch.tensor(0.0, device=store.weights.device) for _ in slices])
            for slices, decays in ((decayed, True), (plain, False))
            if slices
        ]

    @torch.no_grad()
    def apply(self, step: int, lr: float, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the accumulated gradients as step `step`; return (gradient norm, found_inf).

        Both are scalars on the device. Where the loss or the norm is not finite, found_inf is 1
        and weights, m and v stay as they are.
        """
        store = self.store
        store.check_views()
        norm = torch.linalg.vector_norm(store.gradients) / self.scaler.scale
        found_inf = 1.0 - (torch.isfinite(norm) & torch.isfinite(loss)).float()
        factor = 1.0 / self.scaler.scale
        if self.settings.clip:
            factor = factor * (self.settings.clip / (norm + 1e-6)).clamp(max=1.0)
        store.gradients.mul_(factor)
        for slices, decays, t in self._groups:
            for tensor in t:
                tensor.fill_(step - 1)  # the kernel adds 1, and takes it back where it skips
            adamw(
                [store.weights[s] for s in slices],
                [store.gradients[s] for s in slices],
                [store.m[s] for s in slices],
                [store.v[s] for s in slices],
                [],
                t,
                fused=True,
                found_inf=found_inf,
                amsgrad=False,
                beta1=self.settings.beta1,
                beta2=self.settings.beta2,
                lr=lr,
                weight_decay=self.settings.weight_decay if decays else 0.0,
                eps=self.settings.epsilon,
                maximize=False,
            )
        self.scaler.update(found_inf)
        return norm, found_inf
