"""The training loop: what a checkpoint costs it, what it costs itself, and its peers.

    python -m tests.bench.step_speed [DIRECTORY]

The peers train a model of the same shape on windows of the same length: a bare PyTorch loop as
one would write it, and Hugging Face's GPT-2 with the same activation (gelu_pytorch_tanh) under
its Trainer. Theirs run without deterministic kernels, ours with them.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from andread.engine.model import build
from andread.rundir.settings import ModelSettings
from andread.trainer import Trainer
from tests.bench.runs import assemble, make_run
from tests.bench.table import Case, Row, in_turns, median, milliseconds, ratio, show, timed

ROUNDS = 20
STEPS = 3
"""Steps of a case in each round."""


def checkpoint_cost(trainer: Trainer) -> list[Row]:
    """Measure what checkpoints cost the loop: its stall, and the steps beside the writing."""
    engine, checkpointer = trainer._engine, trainer._checkpointer
    size = 12 * engine.n_params
    source, target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
    seconds = in_turns(
        {
            "copy": lambda: target.copy_(source),
            "snapshot": lambda: engine.snapshot(trainer.step),
        },
        ROUNDS,
    )
    stalls, lost, plain_steps = [], [], []
    for _ in range(6):
        plain = [_step(trainer) for _ in range(5)]
        plain_steps += plain
        usual = median(plain)
        begun = time.perf_counter()
        checkpointer.begin(trainer.step, ("cadence",), (), {})
        stall = time.perf_counter() - begun
        beside = []
        while checkpointer.outcome(wait=False) is None:
            beside.append(_step(trainer))
        stalls.append(stall)
        lost.append(stall + sum(beside) - len(beside) * usual)
    usual = median(plain_steps)
    return [
        Row(
            "stall of the loop per checkpoint, against copying 12n bytes between warm buffers",
            f"{ratio(seconds['snapshot'], seconds['copy'])} × "
            f"({milliseconds(median(seconds['snapshot']))})",
            "≤ 1.25 ×",
        ),
        Row(
            "the same with the record of the boundary, as a share of a step",
            f"{100 * median(stalls) / usual:.1f} % of {milliseconds(usual)}",
            "≤ 5 %",
        ),
        Row(
            "window of 100 steps with one checkpoint: stalled",
            f"{median(stalls) / usual:.3f} %",
            "≤ 0.5 %",
        ),
        Row(
            "the same, with what the steps beside the writing took longer",
            f"{median(lost) / usual:.2f} % [{min(lost) / usual:.2f}, {max(lost) / usual:.2f}]",
            "reported",
        ),
    ]


def _step(trainer: Trainer) -> float:
    return timed(trainer._train_one_step)


def beside_the_model(trainer: Trainer) -> list[Row]:
    """Measure all that a step does but the model's arithmetic and the optimizer."""
    engine = trainer._engine
    inner: list[float] = []

    class Timed:
        """Stands between trainer and engine, and takes the time."""

        def __init__(self) -> None:
            self._step = engine.step

        def __call__(self, *arguments: Any) -> Any:
            begun = time.perf_counter()
            result = self._step(*arguments).read()
            inner.append(time.perf_counter() - begun)
            return type("Read", (), {"read": lambda _: result})()

    engine.step = Timed()  # type: ignore[method-assign]
    try:
        whole = [_step(trainer) for _ in range(30)]
    finally:
        del engine.step  # type: ignore[method-assign]
    beside = [a - b for a, b in zip(whole, inner, strict=True)]
    return [
        Row(
            "bandit, history, status, watchdog: all but the arithmetic",
            f"{milliseconds(median(beside))}, "
            f"{100 * median(beside) / median(whole):.2f} % of a step",
            "≤ 1 %",
        )
    ]


def windows(trainer: Trainer) -> np.ndarray[Any, Any]:
    return trainer._curriculum.draw(trainer.step + 1).windows


def bare_loop(settings: ModelSettings, batch: torch.Tensor) -> Callable[[], None]:
    """Return one step of a plain PyTorch loop: fused AdamW over parameters, clipping, item()."""
    model = build(settings, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

    def step() -> None:
        logits = model._head(model._trunk(batch[:, :-1]))
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return step


def against_the_bare_loop(trainer: Trainer) -> list[Row]:
    step = bare_loop(trainer._settings.model, torch.from_numpy(windows(trainer)))

    def bare() -> None:
        torch.use_deterministic_algorithms(False)
        for _ in range(STEPS):
            step()

    def ours() -> None:
        torch.use_deterministic_algorithms(True)
        for _ in range(STEPS):
            trainer._train_one_step()

    cases: dict[str, Case] = {"bare": bare, "ours": ours}
    in_turns(cases, 2)
    seconds = in_turns(cases, ROUNDS)
    tokens = STEPS * 4 * 128 / median(seconds["ours"])
    return [
        Row(
            "tokens/s of the whole daemon, eager and deterministic, against a bare PyTorch loop",
            f"{ratio(seconds['bare'], seconds['ours'])} × ({tokens:,.0f} tokens/s)",
            "lower end ≥ 0.97 ×",
        )
    ]


def against_hugging_face(trainer: Trainer, place: Path) -> list[Row]:
    """Measure GPT-2 of the same shape under Hugging Face's Trainer, in turns with ours."""
    if not importlib.util.find_spec("transformers"):
        return []
    import transformers

    shape = trainer._settings.model
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=shape.vocabulary,
            n_positions=shape.context,
            n_embd=shape.width,
            n_layer=shape.layers,
            n_head=shape.heads,
            activation_function="gelu_pytorch_tanh",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            tie_word_embeddings=False,
        )
    )
    rows = windows(trainer)[:, :-1]
    data = [{"input_ids": row, "labels": row} for row in rows for _ in range(20)]
    steps = 8

    class Clock(transformers.TrainerCallback):
        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_step_end(self, *_: object, **__: object) -> None:
            self.ends.append(time.perf_counter())

    def theirs() -> float:
        torch.use_deterministic_algorithms(False)
        clock = Clock()
        transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(
                output_dir=str(place / "hf"),
                per_device_train_batch_size=4,
                max_steps=steps + 2,
                optim="adamw_torch_fused",
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=data,  # type: ignore[arg-type]
            callbacks=[clock],
        ).train()
        return clock.ends[-1] - clock.ends[1]

    def ours() -> None:
        torch.use_deterministic_algorithms(True)
        for _ in range(steps):
            trainer._train_one_step()

    cases: dict[str, Case] = {"theirs": theirs, "ours": ours}
    in_turns(cases, 1)
    seconds = in_turns(cases, 8)
    return [
        Row(
            "the same against Hugging Face GPT-2 (gelu_pytorch_tanh) under its Trainer",
            f"{ratio(seconds['theirs'], seconds['ours'])} ×",
            "≥ 1.05 ×",
        )
    ]


def measure(place: Path) -> list[Row]:
    trainer = assemble(make_run(place / "run"))
    trainer._checkpointer.begin(0, ("start",), (), {})
    trainer._checkpointer.outcome(wait=True)
    for _ in range(5):
        trainer._train_one_step()
    return [
        *checkpoint_cost(trainer),
        *beside_the_model(trainer),
        *against_the_bare_loop(trainer),
        *against_hugging_face(trainer, place),
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        show("The loop", measure(Path(name)))
