"""The model shipped: its shape, its order, its arithmetic."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from andread.engine.model import Andrea, build
from andread.rundir import checkpoint
from andread.rundir.errors import ConfigError
from andread.rundir.settings import PRESETS, ModelSettings

TINY = ModelSettings(width=16, heads=2, layers=2, context=12, vocabulary=40)


@pytest.mark.parametrize(
    ("preset", "parameters", "size"),
    [
        ("andrea-nano", 671_744, 8_060_936),
        ("andrea-12m", 12_779_520, 153_354_248),
        ("andrea-120m", 119_930_880, 1_439_170_568),
    ],
)
def test_presets_have_their_published_sizes(preset: str, parameters: int, size: int) -> None:
    settings = ModelSettings(**PRESETS[preset])
    with torch.device("meta"):
        model = Andrea(settings)
    assert sum(p.numel() for p in model.parameters()) == parameters == settings.n_params
    assert checkpoint.file_size(parameters) == size


def test_parameters_stand_in_the_order_of_the_file() -> None:
    names = [name for name, _ in Andrea(TINY).named_parameters()]
    block = ("qkv", "attn_out", "mlp_up", "mlp_down")
    assert names == [
        "wte",
        "wpe",
        *(f"blocks.{layer}.{part}" for layer in range(2) for part in block),
        "head.weight",
    ]
    shapes = {name: tuple(p.shape) for name, p in Andrea(TINY).named_parameters()}
    assert shapes["blocks.0.qkv"] == (48, 16)
    assert shapes["blocks.0.mlp_up"] == (64, 16)
    assert shapes["blocks.0.mlp_down"] == (16, 64)


def test_initialisation_is_a_function_of_the_seed_with_scaled_projections() -> None:
    settings = ModelSettings(width=128, heads=4, layers=8, context=64, vocabulary=512)
    first, second, other = build(settings, 1), build(settings, 1), build(settings, 2)
    for a, b, c in zip(first.parameters(), second.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    parts = dict(first.named_parameters())
    assert parts["wte"].std().item() == pytest.approx(0.02, rel=0.02)
    assert parts["blocks.3.qkv"].std().item() == pytest.approx(0.02, rel=0.02)
    assert parts["blocks.3.attn_out"].std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert parts["blocks.3.mlp_down"].std().item() == pytest.approx(0.02 / 4, rel=0.02)


def reference_logits(model: Andrea, tokens: torch.Tensor) -> torch.Tensor:
    """GPT-2's arithmetic written out with torch's own modules and an explicit mask."""
    d, heads = TINY.width, TINY.heads
    norm = nn.LayerNorm(d, eps=1e-5, elementwise_affine=False)
    length = tokens.shape[1]
    mask = torch.full((length, length), -math.inf).triu(1)
    x = model.wte[tokens] + model.wpe[:length]
    for block in model.blocks:
        q, k, v = (norm(x) @ block.qkv.T).split(d, dim=-1)
        split = [t.view(*t.shape[:2], heads, d // heads).transpose(1, 2) for t in (q, k, v)]
        scores = split[0] @ split[1].transpose(-1, -2) / math.sqrt(d // heads) + mask
        mixed = (scores.softmax(-1) @ split[2]).transpose(1, 2).flatten(2)
        x = x + mixed @ block.attn_out.T
        x = x + nn.GELU("tanh")(norm(x) @ block.mlp_up.T) @ block.mlp_down.T
    return norm(x) @ model.head.weight.T


def test_forward_is_gpt2_without_biases_and_gains() -> None:
    model = build(TINY, 3)
    assert isinstance(model, Andrea)
    tokens = torch.randint(0, 40, (3, 13), generator=torch.Generator().manual_seed(0))
    losses = model(tokens[:, :-1], tokens[:, 1:])
    logits = reference_logits(model, tokens[:, :-1])
    expected = functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    assert losses.shape == (3,)
    torch.testing.assert_close(losses, expected.mean(1), rtol=1e-5, atol=1e-5)


def test_the_cache_gives_the_logits_of_the_whole_text() -> None:
    model = build(TINY, 3)
    assert isinstance(model, Andrea)
    tokens = torch.randint(0, 40, (1, 12), generator=torch.Generator().manual_seed(1))
    cache = model.new_cache(1, torch.float32)
    stepwise = [model.logits(tokens[:, :5], cache)]
    stepwise += [model.logits(tokens[:, i : i + 1], cache) for i in range(5, 12)]
    whole = reference_logits(model, tokens)[0, 4:]
    torch.testing.assert_close(torch.cat(stepwise), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factory", ["nonsense", "no.such.module:f", "math:nothing", "math:sqrt"])
def test_a_factory_that_cannot_be_loaded_is_refused(factory: str) -> None:
    settings = ModelSettings(context=8, vocabulary=8, factory=factory)
    with pytest.raises((ConfigError, TypeError)):
        build(settings, 1)
