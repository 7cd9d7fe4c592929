"""Models of a user's own, for the factory."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from andread.rundir.settings import ModelSettings


class Bigram(nn.Module):
    """The smallest language model, with a bias: one parameter that does not decay."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(settings.vocabulary, settings.vocabulary) * 0.1)
        self.bias = nn.Parameter(torch.ones(settings.vocabulary))
        self.more = nn.Parameter(torch.zeros(settings.vocabulary, settings.vocabulary))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = (self.table + self.more)[tokens] + self.bias
        losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return losses.view(targets.shape).mean(1)


def bigram(settings: ModelSettings) -> nn.Module:
    return Bigram(settings)


def frozen(settings: ModelSettings) -> nn.Module:
    model = Bigram(settings)
    model.bias.requires_grad_(False)
    return model


def half(settings: ModelSettings) -> nn.Module:
    return Bigram(settings).half()


def buffered(settings: ModelSettings) -> nn.Module:
    model = Bigram(settings)
    model.register_buffer("counts", torch.zeros(3))
    return model


def forgetful(settings: ModelSettings) -> nn.Module:
    """Detaches its gradients in the middle of training."""

    class Forgetful(Bigram):
        def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
            self.zero_grad()
            return super().forward(tokens, targets)

    return Forgetful(settings)
