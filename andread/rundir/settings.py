"""run.toml: what a run is, as frozen dataclasses with a docstring under every key.

No tool rewrites run.toml. Its keys are of two kinds:

- keys that shape the trajectory (`Settings.trajectory`) may not drift: each checkpoint records
  them, and a start under others is refused with the difference;
- operational keys (steps, cadences, retention, prompts, device) are free.

What a curriculum does with the sources (mixing, caps, floors) is policy and lives in policy.json.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

from andread.rundir.tables import FRACTION, NOT_NEGATIVE, POSITIVE, at_least, one_of, setting

MAX_PARAMETERS: Final = 2**31 - 1
"""The header's int32 n_params bounds a checkpoint file at this many parameters."""

MAX_STEP: Final = 2**31 - 1
"""The header's int32 step bounds a run at this many steps."""

SOURCE_FORMATS: Final = ("text", "jsonl", "parquet", "tokens")


@dataclass(frozen=True)
class RunSettings:
    """`[run]`: how long, how often, how much is kept."""

    steps: int = setting(check=(lambda v: 0 < v <= MAX_STEP, f"from 1 to {MAX_STEP:,}"))
    """Where training ends. Operational: raise it and start again to go on."""
    seed: int = setting(1, check=NOT_NEGATIVE)
    """All randomness is a function of this seed and the step."""
    data_seed: int | None = setting(None, check=NOT_NEGATIVE)
    """Seed of what is drawn: the sources of each batch and the order of their windows; not given:
    `seed`. A fork with other draws has one; its audits stay those of `seed`."""
    checkpoint_every: int = setting(100, check=POSITIVE)
    """Steps between checkpoints."""
    sample_every: int = setting(100, check=POSITIVE)
    """Steps between audits; equal to `checkpoint_every`, each audit has its checkpoint."""
    keep_last: int = setting(3, check=at_least(2))
    """Retention: the newest checkpoints that always stay."""
    keep_every: int = setting(0, check=NOT_NEGATIVE)
    """Retention: checkpoints at multiples of this many steps stay as well; 0 means none."""

    log_every: int = setting(10, check=POSITIVE)
    """Steps between progress lines in a log; on a terminal every step has its line."""

    @property
    def draw_seed(self) -> int:
        """Return the seed that batches are drawn by."""
        return self.seed if self.data_seed is None else self.data_seed


@dataclass(frozen=True)
class ModelSettings:
    """`[model]`: the shape of the model, from a preset, from keys, or from a factory."""

    preset: str = setting("")
    """A name of `PRESETS`; the other keys override it one by one."""
    width: int = setting(0, check=NOT_NEGATIVE)
    """Width of the residual stream, d."""
    heads: int = setting(0, check=NOT_NEGATIVE)
    """Attention heads; they divide the width."""
    layers: int = setting(0, check=NOT_NEGATIVE)
    """Transformer blocks."""
    context: int = setting(0, check=NOT_NEGATIVE)
    """Tokens a sequence: the length of the position table and of a training window."""
    vocabulary: int = setting(0, check=NOT_NEGATIVE)
    """Rows of the token embedding and of the output head."""
    activation: str = setting("gelu_tanh", check=one_of("gelu_tanh", "gelu", "relu"))
    """The non-linearity of the MLP."""
    factory: str = setting("")
    """`package.module:function`, called with these settings: a model of the user's own."""

    @property
    def n_params(self) -> int:
        """Return the number of parameters of the shipped model."""
        embeddings = (2 * self.vocabulary + self.context) * self.width
        return embeddings + 12 * self.layers * self.width**2


PRESETS: Final[dict[str, dict[str, int]]] = {
    "andrea-nano": {"width": 128, "heads": 4, "layers": 2, "context": 128, "vocabulary": 1024},
    "andrea-12m": {"width": 384, "heads": 12, "layers": 6, "context": 1024, "vocabulary": 2304},
    "andrea-120m": {"width": 768, "heads": 12, "layers": 15, "context": 1024, "vocabulary": 8448},
}


@dataclass(frozen=True)
class TokenizerSettings:
    """`[tokenizer]`: where the tokenizer comes from."""

    path: str = setting("")
    """A tokenizer.json of the `tokenizers` library; empty: one is trained on the sources."""
    separator: str = setting("<|endoftext|>")
    """The token that stands between two documents."""


@dataclass(frozen=True)
class DataSettings:
    """`[data]`: how sources become tokens."""

    validation: float = setting(0.05, check=(lambda v: 0 <= v < 1, "from 0 to below 1"))
    """The share of each source that is split off for validation, by document."""


@dataclass(frozen=True)
class SourceSettings:
    """One `[[source]]`: an arm of the curriculum."""

    name: str = setting(
        check=(
            lambda v: v.isascii() and v.replace("-", "").replace("_", "").isalnum() and len(v) < 64,
            "letters, digits, - and _ (at most 63)",
        )
    )
    """The arm's name, in every table, file and event."""
    paths: tuple[str, ...] = setting(check=(lambda v: len(v) > 0, "at least one path"))
    """Files, folders and globs; relative ones are taken from the run directory."""
    format: str = setting("text", check=one_of(*SOURCE_FORMATS))
    """text, jsonl (plain or .gz), parquet, or tokens (flat little-endian uint16)."""
    text_key: str = setting("text")
    """For jsonl and parquet: the key or column that holds the text."""


@dataclass(frozen=True)
class OptimizerSettings:
    """`[optimizer]`: AdamW with linear warm-up and cosine decay."""

    batch: int = setting(check=POSITIVE)
    """Sequences a step."""
    lr: float = setting(check=POSITIVE)
    """The learning rate's peak."""
    decay_steps: int = setting(check=POSITIVE)
    """Where the cosine reaches its minimum; past it the rate stays there."""
    warmup_steps: int = setting(0, check=NOT_NEGATIVE)
    """Steps of linear warm-up from 0."""
    lr_minimum: float = setting(0.1, check=FRACTION)
    """The learning rate's minimum, as a share of its peak."""
    weight_decay: float = setting(0.1, check=NOT_NEGATIVE)
    """Decoupled weight decay of every parameter of two or more dimensions."""
    beta1: float = setting(0.9, check=(lambda v: 0 <= v < 1, "from 0 to below 1"))
    """Decay of m, the moving average of gradients."""
    beta2: float = setting(0.999, check=(lambda v: 0 <= v < 1, "from 0 to below 1"))
    """Decay of v, the moving average of squared gradients."""
    epsilon: float = setting(1e-8, check=POSITIVE)
    """Adam's epsilon."""
    clip: float = setting(1.0, check=NOT_NEGATIVE)
    """The gradient norm is clipped to this; 0 turns clipping off."""


@dataclass(frozen=True)
class EngineSettings:
    """`[engine]`: what computes, and how."""

    device: str = setting("auto", check=one_of("auto", "cuda", "cpu"))
    """`auto` is resolved at the first start and recorded."""
    precision: str = setting("auto", check=one_of("auto", "fp32", "bf16", "fp16"))
    """`auto`: fp32 on the CPU; on CUDA bf16 where the device has it, else fp16."""
    micro_batch: int = setting(0, check=NOT_NEGATIVE)
    """Sequences a forward pass, gradients being accumulated; 0: the whole batch."""
    deterministic: bool = setting(True)
    """Deterministic kernels only, so that a resume gives the same bits."""
    threads: int = setting(0, check=NOT_NEGATIVE)
    """CPU threads; 0: one a core at the first start, recorded for later ones."""
    compile: bool = setting(False)
    """Compile the model with `torch.compile`."""


@dataclass(frozen=True)
class AuditSettings:
    """`[audit]`: the samples and the validation of every audit."""

    prompts: tuple[str, ...] = setting(())
    """Prompts to continue; empty: the start of one validation window a source."""
    tokens: int = setting(64, check=POSITIVE)
    """Tokens generated a prompt."""
    top_k: int = setting(40, check=POSITIVE)
    """Each token is drawn from the k likeliest."""
    temperature: float = setting(0.8, check=POSITIVE)
    """Divides the logits before drawing."""
    validation_windows: int = setting(32, check=NOT_NEGATIVE)
    """Validation windows a source, drawn once by seed over the whole split."""
    keep: int = setting(20, check=POSITIVE)
    """Audits that .samples.json keeps."""


@dataclass(frozen=True)
class FaultSettings:
    """`[faults]`: what happens when a step goes wrong."""

    halt_after_nonfinite: int = setting(10, check=POSITIVE)
    """Consecutive steps with a non-finite loss or gradient that halt the run."""
    spike_factor: float = setting(2.0, check=(lambda v: v > 1, "greater than 1"))
    """A loss above this many times its moving average is a spike: an event."""
    halt_on_spike: bool = setting(False)
    """Halt the run at a spike."""


@dataclass(frozen=True)
class Settings:
    """The whole of run.toml."""

    run: RunSettings
    model: ModelSettings
    sources: tuple[SourceSettings, ...]
    optimizer: OptimizerSettings
    tokenizer: TokenizerSettings = TokenizerSettings()
    data: DataSettings = DataSettings()
    engine: EngineSettings = EngineSettings()
    audit: AuditSettings = AuditSettings()
    faults: FaultSettings = FaultSettings()

    def trajectory(self) -> dict[str, Any]:
        """Return the keys that may not drift, as `section.key` to value."""
        flat: dict[str, Any] = {"run.seed": self.run.seed}
        if self.run.data_seed is not None:
            flat["run.data_seed"] = self.run.data_seed
        flat |= {f"model.{k}": v for k, v in dataclasses.asdict(self.model).items()}
        flat |= {f"optimizer.{k}": v for k, v in dataclasses.asdict(self.optimizer).items()}
        flat.pop("model.preset")  # its keys are in the table one by one
        flat["engine.precision"] = self.engine.precision
        return flat

    def source_names(self) -> tuple[str, ...]:
        """Return the arms: the names of the live sources, in the order of run.toml."""
        return tuple(source.name for source in self.sources)
