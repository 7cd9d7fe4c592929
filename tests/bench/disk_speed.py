"""Writing and reading a checkpoint of `andrea-12m`, against the disk itself and against peers.

python -m tests.bench.disk_speed [DIRECTORY]
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from andread.engine import environment
from andread.engine.flat import FlatEngine
from andread.rundir import checkpoint, files
from andread.rundir.companion import Companion
from andread.rundir.hashing import ThreadedHash
from andread.rundir.history import LossHistory
from andread.rundir.settings import (
    PRESETS,
    EngineSettings,
    ModelSettings,
    OptimizerSettings,
    RunSettings,
    Settings,
)
from tests.bench.table import Case, Row, in_turns, median, milliseconds, ratio, show, timed

ROUNDS = 9


def make_engine(preset: str = "andrea-12m") -> FlatEngine:
    settings = Settings(
        run=RunSettings(steps=10, seed=1),
        model=ModelSettings(**PRESETS[preset]),
        sources=(),
        optimizer=OptimizerSettings(batch=4, lr=1e-3, decay_steps=10),
        engine=EngineSettings(),
    )
    threads = environment.configure(settings.engine, 0)
    engine = FlatEngine(settings, torch.device("cpu"), threads)
    for region in engine.store.regions:
        region.normal_()
    return engine


def writes(engine: FlatEngine, place: Path) -> list[Row]:
    """Measure durable writes of one snapshot: fsync, rename, directory fsync."""
    image = engine.snapshot(7).image()
    state = {
        name: region.clone()
        for name, region in zip(checkpoint.REGIONS, engine.store.regions, strict=True)
    }

    def raw() -> None:
        whole = len(image) // 4096 * 4096
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT
        descriptor = os.open(place / "raw", flags)
        offset = 0
        while offset < whole:
            end = min(whole, offset + files.CHUNK)
            offset += os.pwrite(descriptor, image[offset:end], offset)
        os.fsync(descriptor)
        os.close(descriptor)

    def ours() -> None:
        with files.Staged(place / "ours.bin", len(image)) as staged:
            staged.write_direct(image)
            staged.commit()

    def hashed() -> None:
        with files.Staged(place / "ours.bin", len(image)) as staged, ThreadedHash() as digest:
            digest.update(image)
            staged.write_direct(image)
            digest.hexdigest()
            staged.commit()

    def sha256() -> None:
        hashlib.sha256(image).digest()

    def pickled() -> None:
        _durably(place / "torch.pt", lambda path: torch.save(state, path))

    cases: dict[str, Case] = {
        "raw": raw,
        "ours": ours,
        "hashed": hashed,
        "sha256": sha256,
        "torch.save": pickled,
        "DCP": lambda: _dcp(state, place / "dcp"),
    }
    if importlib.util.find_spec("safetensors"):
        from safetensors.torch import save_file

        cases["safetensors"] = lambda: _durably(
            place / "s.safetensors", lambda path: save_file(state, path)
        )
    in_turns(cases, 1)
    seconds = in_turns(cases, ROUNDS)
    slower = [max(pair) for pair in zip(seconds["raw"], seconds["sha256"], strict=True)]
    rows = [
        Row(
            "durable write, hashing off: speed against a raw direct write of as many bytes",
            f"{ratio(seconds['raw'], seconds['ours'])} × ({milliseconds(median(seconds['ours']))})",
            "≥ 0.9 ×",
        ),
        Row(
            "with hashing: speed against the slower of disk and SHA-256",
            f"{ratio(slower, seconds['hashed'])} × ({milliseconds(median(seconds['hashed']))})",
            "≥ 0.9 ×",
        ),
    ]
    for peer, target in (("torch.save", 2.5), ("safetensors", 1.8), ("DCP", 3.0)):
        if peer in seconds:
            rows.append(
                Row(
                    f"hashing off, against {peer} + fsync: times as fast",
                    f"{ratio(seconds[peer], seconds['ours'])} ×",
                    f"≥ {target} ×",
                )
            )
    return rows


def _durably(path: Path, save: Callable[[Path], object]) -> None:
    temporary = path.with_suffix(".tmp")
    save(temporary)
    with temporary.open("rb") as stream:
        os.fsync(stream.fileno())
    temporary.rename(path)
    files.sync_directory(path.parent)


def _dcp(state: dict[str, torch.Tensor], path: Path) -> float:
    from torch.distributed import checkpoint as dcp

    shutil.rmtree(path, ignore_errors=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it runs in one process
        begun = time.perf_counter()
        dcp.save(state, checkpoint_id=path)  # syncs its files by default
        files.sync_directory(path)
        return time.perf_counter() - begun


def memory(engine: FlatEngine, place: Path) -> list[Row]:
    """Measure what the peak of a process grows by in a save."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    image = engine.snapshot(7).image()
    with files.Staged(place / "ours.bin", len(image)) as staged, ThreadedHash() as digest:
        digest.update(image)
        staged.write_direct(image)
        digest.hexdigest()
        staged.commit()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    share = grown * 1024 / len(image)
    return [
        Row(
            "extra memory of a save beyond the staging buffer",
            f"{grown / 1024:.1f} MiB, {share:.3f} of the file",
            "the one staging buffer",
        )
    ]


def reads(engine: FlatEngine, place: Path) -> list[Row]:
    """Measure checkpoint to tensors, cold, against reading the bytes."""
    path = place / "step_000007.bin"
    image = engine.snapshot(7).image()
    files.replace(path, bytes(image))
    vouched = Companion(
        step=7,
        n_params=engine.n_params,
        sha256="",
        history_length=2,
        history_sha256="",
        policy="",
        reasons=(),
        t=0.0,
    )
    buffer = memoryview(bytearray(len(image)))

    def cold(act: Callable[[], object]) -> Callable[[], float]:
        def measured() -> float:
            with files.opened(path) as descriptor:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            return timed(act)

        return measured

    def bytes_alone() -> None:
        with files.opened(path) as descriptor:
            for start in range(0, len(buffer), files.CHUNK):
                files.read_into(descriptor, buffer[start : start + files.CHUNK], start)

    seconds = in_turns(
        {
            "bytes": cold(bytes_alone),
            "tensors": cold(lambda: engine.load(path, vouched)),
            "sha256": lambda: hashlib.sha256(image),
        },
        ROUNDS,
    )
    slower = [max(pair) for pair in zip(seconds["bytes"], seconds["sha256"], strict=True)]
    return [
        Row(
            "checkpoint to tensors, hashed, against reading the bytes (cold)",
            f"{ratio(seconds['tensors'], seconds['bytes'])} × "
            f"({milliseconds(median(seconds['tensors']))})",
            "≤ 1.25 ×",
        ),
        Row(
            "the same against the slower of reading and SHA-256",
            f"{ratio(seconds['tensors'], slower)} ×",
        ),
    ]


def appends(place: Path) -> list[Row]:
    """Measure appends to the loss history, unsynced: to a new one and to a long one, in turns."""
    new, long = (LossHistory.create(place / name) for name in ("new.json", "long.json"))
    for step in range(1, 200_001):
        long.record(_entry(step))
        if step % 1_000 == 0:
            long.sync()
    seconds = in_turns(
        {
            "new": lambda: new.record(_entry(new.step + 1)),
            "long": lambda: long.record(_entry(long.step + 1)),
        },
        4_000,
    )
    new.close()
    long.close()
    first, last = median(seconds["new"]), median(seconds["long"])
    return [
        Row("history append, unsynced", f"{first * 1e6:.1f} µs", "≤ 10 µs"),
        Row("entry 200,000 against entry 1", f"{last / first:.2f} ×", "≤ 1.2 ×"),
    ]


def _entry(step: int) -> dict[str, object]:
    return {
        "step": step,
        "loss": 3.14159265358979 + step % 7,
        "lr": 6e-4,
        "grad_norm": 0.987654321,
        "pulls": {"code": 2, "prose": 2},
        "t": 1_800_000_000.123,
    }


def measure(place: Path) -> list[Row]:
    engine = make_engine()
    return [
        *memory(engine, place),
        *writes(engine, place),
        *reads(engine, place),
        *appends(place),
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        show("The disk", measure(Path(name)))
