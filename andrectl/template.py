"""The text of a new run.toml: every section, every value explained.

Keys marked `(fixed)` shape the trajectory: once the run has a checkpoint, a start under another
value is refused. The others may be changed between two starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from andread.rundir.settings import SOURCE_FORMATS


@dataclass(frozen=True)
class Recipe:
    """What a preset is trained with unless one says otherwise."""

    steps: int
    batch: int
    micro_batch: int
    lr: float
    warmup: int
    checkpoint_every: int
    keep_every: int


RECIPES: Final = {
    "andrea-nano": Recipe(300, 48, 0, 3e-3, 20, 100, 0),
    "andrea-12m": Recipe(20_000, 16, 0, 6e-4, 400, 100, 2_000),
    "andrea-120m": Recipe(200_000, 16, 4, 3e-4, 2_000, 100, 20_000),
}


def quoted(value: Any) -> str:
    """Return a string or a list of strings as TOML; JSON's quoting is a part of TOML's."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(quoted(item) for item in value) + "]"
    return orjson.dumps(value).decode().replace("\x7f", "\\u007f")


def run_toml(
    preset: str, recipe: Recipe, seed: int, sources: Sequence[dict[str, Any]], tokenizer: str = ""
) -> str:
    """Return the run.toml of a run of `preset`; each source is a table of `[[source]]` keys."""
    warmup = min(recipe.warmup, recipe.steps // 10)
    head = _HEAD.format(
        preset=quoted(preset),
        steps=recipe.steps,
        seed=seed,
        checkpoint_every=recipe.checkpoint_every,
        keep_every=recipe.keep_every,
        tokenizer=quoted(tokenizer),
        batch=recipe.batch,
        lr=recipe.lr,
        warmup=warmup,
        micro_batch=recipe.micro_batch,
    )
    return _aligned(head) + "\n".join(table_toml("[[source]]", table) for table in sources)


def table_toml(header: str, table: Mapping[str, Any]) -> str:
    """Return one table of plain values and lists of them, under its header."""
    return f"{header}\n" + "".join(f"{key} = {quoted(value)}\n" for key, value in table.items())


def _aligned(text: str) -> str:
    """Put the comments that the template marks by ## into one column."""
    pairs = (line.partition(" ## ") for line in text.splitlines())
    return "".join(
        f"{code:<25} # {comment}\n" if mark else f"{code}\n" for code, mark, comment in pairs
    )


_HEAD: Final = f"""\
# What this run is. No tool rewrites this file; your comments stay.
#
# (fixed) marks what shapes the trajectory: each checkpoint records it, and a start under another
# value is refused, because the run would no longer be the run that it was. Everything else is
# operational and may be changed between two starts. What the curriculum does with the sources
# (mixing, caps, floors) is in policy.json, and changes by a pivot.

[run]
steps = {{steps}} ## where training ends; raise it to go on
seed = {{seed}} ## (fixed) all randomness is a function of this and the step
checkpoint_every = {{checkpoint_every}} ## steps between checkpoints
sample_every = {{checkpoint_every}} ## steps between audits; equal: each audit has a checkpoint
keep_last = 3 ## retention: the newest checkpoints that always stay (at least 2)
keep_every = {{keep_every}} ## retention: multiples of this stay as well; 0: none
log_every = 10 ## steps between progress lines in a log; a terminal shows every step

[model] ## (fixed) the whole section
preset = {{preset}}
# width, heads, layers, context, vocabulary and activation override the preset one by one;
# factory = "package.module:function" brings a model of your own.

[tokenizer] ## (fixed) as far as it changes the tokens
path = {{tokenizer}} ## a tokenizer.json; empty: one is trained on the sources
separator = "<|endoftext|>" ## the token between two documents

[data] ## (fixed) as far as it changes the tokens
validation = 0.05 ## the share of each source that is kept for validation

[optimizer] ## (fixed) the whole section: AdamW
batch = {{batch}} ## sequences a step
lr = {{lr}} ## the learning rate's peak
warmup_steps = {{warmup}} ## steps of linear warm-up from 0
decay_steps = {{steps}} ## where the cosine reaches its minimum; it stays there afterwards
lr_minimum = 0.1 ## the minimum, as a share of the peak
weight_decay = 0.1
beta1 = 0.9
beta2 = 0.999
epsilon = 1e-8
clip = 1.0 ## the gradient norm is clipped to this; 0: never

[engine]
device = "auto" ## auto, cuda or cpu; auto is resolved at the first start and recorded
precision = "auto" ## (fixed) auto, fp32, bf16 or fp16
micro_batch = {{micro_batch}} ## sequences a forward pass; it divides the batch; 0: all of it
deterministic = true ## deterministic kernels only, so that a resume gives the same bits
threads = 0 ## CPU threads; 0: one a core at the first start, recorded
compile = false ## torch.compile

[audit]
prompts = [] ## prompts to continue; empty: the start of one validation window a source
tokens = 64 ## tokens generated a prompt
top_k = 40
temperature = 0.8
validation_windows = 32 ## validation windows a source
keep = 20 ## audits that .samples.json keeps

[faults]
halt_after_nonfinite = 10 ## consecutive steps without a finite loss that halt the run
spike_factor = 2.0 ## a loss above this many times its moving average is an event
halt_on_spike = false ## whether it halts the run too

# Sources: the arms of the curriculum. `paths` are files, folders and globs; `format` is one of
# {", ".join(SOURCE_FORMATS)}; `text_key` names the text in jsonl and parquet.

"""
