"""`make bench-gpu`: the same on one GPU, in under five minutes, into a file.

    python -m tests.bench.gpu RESULTS.md [--device cuda] [--presets andrea-12m,andrea-120m]

With `--device cpu --presets andrea-nano` it can be tried where there is no GPU.

Model FLOPs utilisation counts 6 FLOPs a token for each parameter that is multiplied (all but the
two embeddings) and 12 · layers · width · context for attention, over the dense peak of the device.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from andread.engine import environment
from andread.engine.flat import FlatEngine
from andread.rundir import checkpoint, commit, files
from andread.rundir.companion import Companion
from andread.rundir.history import LossHistory
from andread.rundir.layout import RunDirectory
from andread.rundir.settings import (
    PRESETS,
    EngineSettings,
    ModelSettings,
    OptimizerSettings,
    RunSettings,
    Settings,
)
from tests.bench.table import Row, median, milliseconds, show

PEAKS = {"4090": 165.2, "3090": 71.0, "A100": 312.0, "H100": 989.4, "H200": 989.4, "L4": 121.0}
"""Dense half-precision peaks with float32 accumulation, in TFLOPS, by a part of the name."""

MICRO_BATCHES = (8, 16, 32, 64)
STEPS = 6


class Bench:
    """One device, and the engines that are measured on it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        self.name = name
        self.peak = next((peak for part, peak in PEAKS.items() if part in name), None)

    def engine(self, preset: str, batch: int, **given: Any) -> FlatEngine:
        torch.compiler.reset()
        settings = Settings(
            run=RunSettings(steps=1000, seed=1),
            model=ModelSettings(**PRESETS[preset]),
            sources=(),
            optimizer=OptimizerSettings(batch=batch, lr=1e-4, decay_steps=1000),
            engine=replace(EngineSettings(), **given),
        )
        threads = environment.configure(settings.engine, 0)
        return FlatEngine(settings, self.device, threads)

    @contextlib.contextmanager
    def freed(self) -> Iterator[None]:
        """Give the device's memory back behind the block."""
        yield
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def windows(self, engine: FlatEngine) -> np.ndarray[Any, np.dtype[np.int64]]:
        model = engine.settings.model
        shape = (engine.settings.optimizer.batch, model.context + 1)
        return np.random.default_rng(1).integers(0, model.vocabulary, shape, dtype=np.int64)

    def pace(self, engine: FlatEngine, steps: int = STEPS) -> float:
        """Return the seconds of a step, once warm."""
        windows = self.windows(engine)
        for step in (1, 2):
            engine.step(windows, step, 1e-4).read()
        begun = time.perf_counter()
        for step in range(3, 3 + steps):
            engine.step(windows, step, 1e-4).read()
        return (time.perf_counter() - begun) / steps

    def throughput(
        self, preset: str, precision: str, compiled: bool, fixed: bool, batches: Sequence[int]
    ) -> tuple[Row, int]:
        """Measure tokens a second at the best of `batches`; return that batch too."""
        best, best_batch, first = 0.0, 0, 0.0
        for batch in batches:
            try:
                with self.freed():
                    begun = time.perf_counter()
                    engine = self.engine(
                        preset, batch, precision=precision, compile=compiled, deterministic=fixed
                    )
                    engine.step(self.windows(engine), 1, 1e-4).read()
                    first = first or time.perf_counter() - begun
                    rate = batch * engine.settings.model.context / self.pace(engine)
                    del engine
            except torch.OutOfMemoryError:
                break
            if rate < best * 1.02:
                break
            best, best_batch = rate, batch
        model = ModelSettings(**PRESETS[preset])
        multiplied = model.n_params - (model.vocabulary + model.context) * model.width
        flops = 6 * multiplied + 12 * model.layers * model.width * model.context
        use = f", MFU {100 * best * flops / (self.peak * 1e12):.1f} %" if self.peak else ""
        row = Row(
            f"{preset}, {precision}, {'compiled' if compiled else 'eager'}, "
            f"{'deterministic' if fixed else 'not deterministic'}",
            f"{best:,.0f} tokens/s at batch {best_batch}{use}; first step after {first:.1f} s",
            "MFU ≥ 50 % (4090, A100), ≥ 40 % (H100, H200)" if preset == "andrea-120m" else "",
        )
        return row, best_batch

    def checkpoints(self, preset: str, place: Path) -> list[Row]:
        """Measure what a checkpoint costs the loop, and how long it takes."""
        engine = self.engine(preset, 8)
        run = RunDirectory(place)
        history = LossHistory.create(run.history)
        usual = self.pace(engine)
        windows = self.windows(engine)
        stalls, beside, writes = [], [], []
        for step in range(10, 40, 10):
            begun = time.perf_counter()
            snapshot = engine.snapshot(step)
            stalls.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            engine.step(windows, step + 1, 1e-4).read()
            beside.append(time.perf_counter() - begun)
            image = snapshot.image()
            begun = time.perf_counter()
            vouched = commit.commit(run, image, history, lambda digest: self.vouch(engine, digest))
            writes.append(time.perf_counter() - begun)
        path = run.checkpoint(30)
        with files.opened(path) as descriptor:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        begun = time.perf_counter()
        engine.load(path, replace(vouched, step=30))
        loaded = time.perf_counter() - begun
        stall, late = median(stalls), median(beside) - usual
        return [
            Row(f"{preset}: a snapshot holds the host", milliseconds(stall)),
            Row(
                f"{preset}: window of 100 steps with one checkpoint, stall and the step beside it",
                f"{(stall + max(0.0, late)) / usual:.3f} % of {milliseconds(usual)} a step",
                "≤ 0.5 %",
            ),
            Row(
                f"{preset}: durable write, hashed, {checkpoint.file_size(engine.n_params):,} bytes",
                f"{median(writes):.2f} s",
            ),
            Row(f"{preset}: checkpoint to device, cold", f"{loaded:.2f} s"),
        ]

    def vouch(self, engine: FlatEngine, digest: str) -> Companion:
        return Companion(
            step=0,
            n_params=engine.n_params,
            sha256=digest,
            history_length=2,
            history_sha256="",
            policy="",
            reasons=(),
            t=0.0,
            scaler=engine.scaler_state(),
        )

    def bits(self, preset: str, precision: str, place: Path, fixed: bool) -> Row:
        """Compare a resumed run with an unbroken one."""
        path = place / f"{precision}.bin"
        one = self.engine(preset, 8, precision=precision, deterministic=fixed)
        windows = self.windows(one)
        for step in range(1, 4):
            one.step(windows, step, 1e-4).read()
        path.write_bytes(one.snapshot(3).image())
        vouched = replace(self.vouch(one, ""), step=3)
        unbroken = [one.step(windows, step, 1e-4).read().loss for step in range(4, 24)]
        two = self.engine(preset, 8, precision=precision, deterministic=fixed)
        two.load(path, vouched)
        resumed = [two.step(windows, step, 1e-4).read().loss for step in range(4, 24)]
        worst = max(abs(a - b) for a, b in zip(unbroken, resumed, strict=True))
        weights = all(
            torch.equal(a, b) for a, b in zip(one.store.regions, two.store.regions, strict=True)
        )
        same = "exact, weights too" if weights else f"largest difference of a loss {worst:.2e}"
        return Row(
            f"{preset}, {precision}: 20 steps after a resume, "
            f"{'deterministic' if fixed else 'not deterministic'}",
            same,
            "exact" if fixed else "reported",
        )


def measure(bench: Bench, presets: list[str], place: Path) -> list[Row]:
    halves = ("bf16", "fp16") if bench.device.type == "cuda" else ("fp32",)
    rows = []
    for preset in presets:
        for precision in halves:
            eager, batch = bench.throughput(preset, precision, False, False, MICRO_BATCHES)
            compiled, _ = bench.throughput(preset, precision, True, False, [batch])
            rows += [eager, compiled]
        fixed, _ = bench.throughput(preset, halves[0], True, True, [batch])
        rows.append(fixed)
    for preset in presets:
        folder = place / preset
        folder.mkdir()
        rows += bench.checkpoints(preset, folder)
    for precision in halves:
        rows.append(bench.bits(presets[0], precision, place, fixed=True))
    rows.append(bench.bits(presets[0], halves[0], place, fixed=False))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--presets", default="andrea-12m,andrea-120m")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --device cpu --presets andrea-nano tries it")
    bench = Bench(torch.device(given.device, 0) if given.device == "cuda" else torch.device("cpu"))
    out = io.StringIO()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(out):
        show(
            f"{bench.name}, torch {torch.__version__}",
            measure(bench, given.presets.split(","), Path(name)),
        )
    out.write(f"\n{time.monotonic() - begun:.0f} s in all.\n")
    given.results.write_text(out.getvalue(), encoding="utf-8")
    print(out.getvalue())


if __name__ == "__main__":
    main()
