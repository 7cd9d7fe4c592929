"""The flat store: weights, gradients, m and v, each one flat float32 tensor in file order.

Every parameter of the model becomes a view into `weights`, and its gradient one into
`gradients`. So the optimizer is one fused call, clipping one norm, and the checkpoint the memory
layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from andread.rundir.errors import ConfigError
from andread.rundir.settings import MAX_PARAMETERS


@dataclass(frozen=True)
class Slot:
    """Where one parameter lives in the flat tensors."""

    name: str
    parameter: nn.Parameter
    owner: nn.Module
    start: int
    stop: int

    @property
    def is_owned(self) -> bool:
        """Tell whether the model still uses this very parameter."""
        return self.owner._parameters.get(self.name.rpartition(".")[2]) is self.parameter


class FlatStore:
    """The flat tensors of a model, each of shape [n_params], on one device."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        named = list(model.named_parameters())
        _refuse_what_does_not_fit(model, named)
        self.n_params = sum(parameter.numel() for _, parameter in named)
        if self.n_params > MAX_PARAMETERS:
            raise ConfigError(
                f"the model has {self.n_params:,} parameters; a checkpoint file holds at most "
                f"{MAX_PARAMETERS:,} (int32)",
                "make the model smaller: beyond that size only a sharded checkpoint will do",
            )
        self.weights = torch.empty(self.n_params, dtype=torch.float32, device=device)
        self.gradients = torch.zeros_like(self.weights)
        self.m = torch.zeros_like(self.weights)
        self.v = torch.zeros_like(self.weights)
        self.slots: list[Slot] = []
        start = 0
        for name, parameter in named:
            owner = model.get_submodule(name.rpartition(".")[0])
            slot = Slot(name, parameter, owner, start, start + parameter.numel())
            view = self.weights[slot.start : slot.stop].view(parameter.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = self.gradients[slot.start : slot.stop].view(parameter.shape)
            self.slots.append(slot)
            start = slot.stop

    @property
    def regions(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights, m and v: the regions of the checkpoint file."""
        return self.weights, self.m, self.v

    def decay_slices(self) -> tuple[list[slice], list[slice]]:
        """Return the slices that weight decay applies to and those it does not.

        Parameters of two or more dimensions decay; consecutive ones of a kind form one slice.
        """
        kinds: tuple[list[slice], list[slice]] = ([], [])
        for slot in self.slots:
            slices = kinds[0 if slot.parameter.ndim >= 2 else 1]
            if slices and slices[-1].stop == slot.start:
                slices[-1] = slice(slices[-1].start, slot.stop)
            else:
                slices.append(slice(slot.start, slot.stop))
        return kinds

    def check_views(self) -> None:
        """Check that every weight and gradient is still its view; raise `ConfigError` if not.

        `zero_grad()` and `load_state_dict(assign=True)` detach them silently.
        """
        weights, gradients = self.weights.data_ptr(), self.gradients.data_ptr()
        for slot in self.slots:
            gradient = slot.parameter.grad
            if not slot.is_owned or slot.parameter.data_ptr() != weights + 4 * slot.start:
                raise _detached(slot.name, "weight")
            if gradient is None or gradient.data_ptr() != gradients + 4 * slot.start:
                raise _detached(slot.name, "gradient")


def _refuse_what_does_not_fit(model: nn.Module, named: list[tuple[str, nn.Parameter]]) -> None:
    """Refuse, by name, tensors that the checkpoint file could not carry."""
    if not named:
        raise ConfigError("the model has no parameters", "return a module that has some")
    for name, parameter in named:
        if parameter.dtype != torch.float32 or not parameter.requires_grad:
            raise ConfigError(
                f"the model's parameter {name} is {parameter.dtype}"
                f"{'' if parameter.requires_grad else ' and frozen'}",
                "every parameter must be float32 and trainable: a checkpoint holds nothing else",
            )
    persistent = set(model.state_dict()) - {
        n for n, _ in model.named_parameters(remove_duplicate=False)
    }
    for name in sorted(persistent):
        raise ConfigError(
            f"the model's buffer {name} is persistent",
            "register it with persistent=False: a checkpoint holds parameters only",
        )


def _detached(name: str, kind: str) -> ConfigError:
    return ConfigError(
        f"the {kind} of {name} is no longer part of the flat store",
        "the model must not call zero_grad(), load_state_dict(assign=True) or replace parameters",
    )
