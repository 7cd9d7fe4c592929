"""The model shipped: GPT-2 without biases or gains.

Learned token and position embeddings, pre-norm blocks, LayerNorm without parameters, causal
attention through torch's SDPA, MLP of four times the width, final norm, untied head. Every
parameter is a matrix; their order here is the order of the checkpoint file:

    wte [vocabulary, d], wpe [context, d],
    for each layer: qkv [3d, d], attn_out [d, d], mlp_up [4d, d], mlp_down [d, 4d],
    head.weight [vocabulary, d]

It is GPT2LMHeadModel with gains 1, biases 0 and `tie_word_embeddings=False`.
Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from andread import randomness
from andread.rundir.errors import ConfigError
from andread.rundir.settings import ModelSettings

_EPSILON: Final = 1e-5
_STD: Final = 0.02

_ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu": functional.gelu,
    "relu": functional.relu,
}


class KeyValueCache:
    """Keys and values of the tokens so far, for one generation.

    `keys` and `values`: [layers, batch, heads, context, d / heads]; `length` tokens are filled.
    """

    def __init__(self, model: Andrea, batch: int, dtype: torch.dtype) -> None:
        settings = model.settings
        shape = (
            settings.layers,
            batch,
            settings.heads,
            settings.context,
            settings.width // settings.heads,
        )
        self.keys = torch.zeros(shape, dtype=dtype, device=model.wte.device)
        self.values = torch.zeros_like(self.keys)
        self.length = 0


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        width = settings.width
        self.heads = settings.heads
        self.activation = _ACTIVATIONS[settings.activation]
        self.qkv = nn.Parameter(torch.empty(3 * width, width))
        self.attn_out = nn.Parameter(torch.empty(width, width))
        self.mlp_up = nn.Parameter(torch.empty(4 * width, width))
        self.mlp_down = nn.Parameter(torch.empty(width, 4 * width))

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor, int] | None = None) -> Tensor:
        """Map [B, T, d] to [B, T, d]; with `cache` = (keys, values, length) append to it."""
        batch, length, width = x.shape
        projected = functional.linear(_norm(x), self.qkv)
        q, k, v = projected.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        causal = True
        if cache is not None:
            keys, values, past = cache
            keys[:, :, past : past + length] = k
            values[:, :, past : past + length] = v
            k, v = keys[:, :, : past + length], values[:, :, : past + length]
            causal = past == 0
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        x = x + functional.linear(
            mixed.transpose(1, 2).reshape(batch, length, width), self.attn_out
        )
        hidden = self.activation(functional.linear(_norm(x), self.mlp_up))
        return x + functional.linear(hidden, self.mlp_down)


class Andrea(nn.Module):
    """The language model of the presets."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.settings = settings
        self.wte = nn.Parameter(torch.empty(settings.vocabulary, settings.width))
        self.wpe = nn.Parameter(torch.empty(settings.context, settings.width))
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        # A module and not a bare parameter: those would come before the blocks.
        self.head = nn.Linear(settings.width, settings.vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of each sequence, [B] in nats, for int64 [B, T]."""
        logits = self._head(self._trunk(tokens))
        losses = functional.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), reduction="none"
        )
        return losses.view(targets.shape).mean(dim=1)

    def logits(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """Return the logits [B, vocabulary] that follow `tokens` [B, T], extending `cache`.

        The first call may bring a whole prompt; each later one brings one token.
        """
        assert cache.length == 0 or tokens.shape[1] == 1, "a prompt goes in first, and whole"
        return self._head(self._trunk(tokens, cache)[:, -1:])[:, 0].float()

    def new_cache(self, batch: int, dtype: torch.dtype) -> KeyValueCache:
        """Return an empty cache for `batch` generations computed in `dtype`."""
        return KeyValueCache(self, batch, dtype)

    def initialize(self, seed: int) -> None:
        """Draw the weights: normal(0, 0.02), the two output projections over √(2·layers)."""
        generator = torch.Generator().manual_seed(randomness.key(seed, "init") >> 1)
        scaled = _STD / math.sqrt(2 * self.settings.layers)
        for name, parameter in self.named_parameters():
            std = scaled if name.endswith(("attn_out", "mlp_down")) else _STD
            nn.init.normal_(parameter, std=std, generator=generator)

    def _trunk(self, tokens: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        past = cache.length if cache is not None else 0
        length = tokens.shape[1]
        x = functional.embedding(tokens, self.wte) + self.wpe[past : past + length]
        for index, block in enumerate(self.blocks):
            x = block(x, (cache.keys[index], cache.values[index], past) if cache else None)
        if cache is not None:
            cache.length += length
        return x

    def _head(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(_norm(x))
        return logits


def _norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], eps=_EPSILON)


def build(settings: ModelSettings, seed: int, drawn: bool = True) -> nn.Module:
    """Return the model of `settings` on the CPU, initialised as a function of `seed`.

    With `drawn` False the shipped model's weights are left as they come: a checkpoint follows.

    Raises `ConfigError` if a factory of the user's own cannot be loaded or gives no module.
    """
    if not settings.factory:
        model = Andrea(settings)
        if drawn:
            model.initialize(seed)
        return model
    module_name, _, function_name = settings.factory.partition(":")
    hint = "write it as package.module:function, importable from where andread starts"
    try:
        factory = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f'[model] factory = "{settings.factory}": {error}', hint) from error
    torch.manual_seed(randomness.key(seed, "init") >> 1)
    built = factory(settings)
    if not isinstance(built, nn.Module):
        raise ConfigError(f'[model] factory = "{settings.factory}" returned no nn.Module', hint)
    return built
