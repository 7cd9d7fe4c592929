"""What the bits of a step depend on beside the run's own state, and how it is fixed.

The promise of equal bits holds for one device kind, thread count and software. `Environment`
records them; a resume under others is allowed, told, and judged by tolerance.
"""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from andread.rundir.errors import BusyError, ConfigError
from andread.rundir.settings import EngineSettings


def resolve_device(asked: str, recorded: str, override: str = "") -> torch.device:
    """Return the device to train on.

    `asked` is run.toml's word, `recorded` the kind that the last checkpoint was written on,
    `override` the operator's. Raises `BusyError` where a CUDA device is wanted and absent (it
    may come: drivers are late at boot), `ConfigError` where the kind would change silently.
    """
    available = torch.cuda.is_available()
    if override:
        kind = override
    elif asked == "auto":
        kind = recorded or ("cuda" if available else "cpu")
    else:
        kind = asked
    if recorded and kind != recorded and not override:
        raise ConfigError(
            f"the run was trained on {recorded} and [engine] device says {kind}",
            f"andrectl start --device {kind} changes it; the bits will differ from then on",
        )
    if kind == "cuda" and not available:
        raise BusyError(
            "the run trains on CUDA and no CUDA device is available",
            "wait for the driver, or andrectl start --device cpu",
        )
    return torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu")


def resolve_precision(asked: str, device: torch.device) -> str:
    """Return fp32, bf16 or fp16 for `asked` on `device`."""
    if asked != "auto":
        return asked
    if device.type == "cpu":
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def configure(settings: EngineSettings, recorded_threads: int) -> int:
    """Fix threads and kernels for the process; return the number of CPU threads."""
    threads = settings.threads or recorded_threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if settings.compile:  # tells the compiler too, whose import takes as long as torch's own
        torch.use_deterministic_algorithms(settings.deterministic)
    else:
        torch.set_deterministic_debug_mode("error" if settings.deterministic else "default")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return threads


def describe(
    device: torch.device, precision: str, threads: int, settings: EngineSettings
) -> dict[str, Any]:
    """Return the environment as a companion records it."""
    described: dict[str, Any] = {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "device": device.type,
        "precision": precision,
        "threads": threads,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic": settings.deterministic,
        "compile": settings.compile,
        "micro_batch": settings.micro_batch,
    }
    if device.type == "cuda":
        described["device_name"] = torch.cuda.get_device_name(device)
        described["cuda"] = torch.version.cuda
    return described
