"""The engine on CUDA: the same promises, on one GPU, in a minute. Runs where there is one."""

import dataclasses
from pathlib import Path

import pytest
import torch

from andread.engine import environment
from andread.engine.flat import FlatEngine
from andread.rundir.settings import Settings
from tests.engine.test_flat import companion_of, save, settings, windows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def make(given: Settings) -> FlatEngine:
    environment.configure(given.engine, 0)
    return FlatEngine(given, torch.device("cuda", 0), torch.get_num_threads())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_resume_on_cuda_is_bit_for_bit(precision: str, tmp_path: Path) -> None:
    engine = make(settings(precision=precision))
    for step in range(1, 4):
        assert engine.step(windows(step), step, 1e-2).read().applied
    save(engine, 3, tmp_path / "c.bin")
    other = make(settings(precision=precision))
    other.load(tmp_path / "c.bin", companion_of(engine, 3))
    for step in range(4, 8):
        a = engine.step(windows(step), step, 1e-2).read()
        assert other.step(windows(step), step, 1e-2).read() == a
    for one, two in zip(engine.store.regions, other.store.regions, strict=True):
        assert torch.equal(one, two)


def test_cuda_agrees_with_the_cpu_in_fp32() -> None:
    on_gpu, given = make(settings(precision="fp32")), settings(precision="fp32")
    on_cpu = FlatEngine(given, torch.device("cpu"), 1)
    for step in range(1, 6):
        a = on_gpu.step(windows(step), step, 1e-2).read()
        b = on_cpu.step(windows(step), step, 1e-2).read()
        assert a.losses == pytest.approx(b.losses, rel=1e-4)


def test_generation_and_evaluation_on_cuda() -> None:
    engine = make(dataclasses.replace(settings()))
    assert len(engine.evaluate(windows(1))) == 6
    generation = engine.generation([1, 2, 3])
    tokens, logits = generation.candidates(5, 40)
    assert len(tokens) == 5 and logits == sorted(logits, reverse=True)
    generation.extend(tokens[0])
    assert len(generation.candidates(5, 40)[0]) == 5
