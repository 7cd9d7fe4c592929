"""What computes: torch, the device and its driver, and memory on both sides.

torch is imported by a process of its own, so that this one stays small and outlives its faults. On
a device that the run is using just now, no context is made: that would take memory from it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, Final

import orjson
import psutil

from andread.rundir import errors
from andread.rundir.settings import Settings
from andrectl import loose, render
from andrectl.checks import Check, Outcome, failed, ok, skipped, warning
from andrectl.cost import STAGING, TRAINING

if TYPE_CHECKING:
    from andrectl.doctor.patient import Patient

_ASK: Final = """
import json, os, sys
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
try:
    import torch
except Exception as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
    sys.exit()
there = torch.cuda.is_available()
told = {"torch": torch.__version__, "cuda": torch.version.cuda or torch.version.hip}
told |= {"available": there, "devices": torch.cuda.device_count() if there else 0}
if there and sys.argv[1] == "look":
    told["free"], told["total"] = torch.cuda.mem_get_info(0)
    told["name"] = torch.cuda.get_device_name(0)
    told["bf16"] = torch.cuda.is_bf16_supported(including_emulation=False)
print(json.dumps(told))
"""
_PATIENCE: Final = 120.0
_DRIVER: Final = Path("/proc/driver/nvidia/version")
_NODES: Final = ("nvidiactl", "nvidia0", "nvidia-uvm")
_HOST: Final = {"cpu": 600_000_000, "cuda": 2_500_000_000}
"""Bytes that Python, torch and the device's libraries take on the host, beside the model."""
_CONTEXT: Final = 700_000_000
"""Bytes that a context and its kernels take on the device."""
_SLACK: Final = 1.15
"""Allocators do not fill what they hold."""


@dataclass(frozen=True)
class Need:
    """Bytes of memory that training takes, by estimate."""

    state: int
    """Weights, gradients, m and v."""
    activations: int
    """What a micro-batch keeps for its backward pass; 0 where the model's shape is not known."""
    staging: int
    """The buffer that a checkpoint is written from, in host memory."""

    @property
    def device(self) -> int:
        """Return the bytes on the device."""
        return round((self.state + self.activations) * _SLACK)


def need(settings: Settings, n_params: int, device: str) -> Need:
    """Return what a run of `settings` takes.

    A token keeps about 16 rows of the residual stream's width a layer (norms, q, k, v, attention,
    MLP, residuals; the attention matrix itself is never kept), and its logits three times, in
    float32 but for one. Mixed precision halves the rows and keeps a copy of the weights.
    """
    model = settings.model
    batch = settings.optimizer.batch
    micro = min(settings.engine.micro_batch or batch, batch)
    mixed = settings.engine.precision in ("bf16", "fp16") or (
        settings.engine.precision == "auto" and device == "cuda"
    )
    number = 2 if mixed else 4
    token = 16 * model.layers * model.width * number + model.vocabulary * (number + 8)
    copy = 2 * n_params if mixed else 0
    activations = 0 if model.factory else micro * model.context * token + copy
    return Need(TRAINING * n_params, activations, STAGING * n_params)


class Computer:
    """What torch says of this machine, asked once."""

    def __init__(self, patient: Patient) -> None:
        self.patient = patient
        self.busy = patient.pid is not None and patient.device == "cuda"

    @cached_property
    def told(self) -> dict[str, Any]:
        """Return torch's answer; `error` is why there is none."""
        try:
            done = subprocess.run(
                [sys.executable, "-c", _ASK, "leave" if self.busy else "look"],
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
                check=False,
            )
            answer = orjson.loads(done.stdout.strip().rpartition("\n")[2] or b"{}")
        except subprocess.TimeoutExpired:
            return {"error": f"it did not answer in {_PATIENCE:.0f} seconds"}
        except orjson.JSONDecodeError:
            answer = {}
        if not isinstance(answer, dict) or not answer:
            last = done.stderr.strip().rpartition("\n")[2]
            return {"error": f"its process ended with {done.returncode}: {last}"}
        return answer

    @property
    def cuda(self) -> bool:
        """Tell whether torch can use a GPU."""
        return self.told.get("available") is True

    @property
    def device(self) -> str:
        """Return what the run computes on: cuda or cpu."""
        wanted = self.patient.device
        return wanted if wanted != "auto" else ("cuda" if self.cuda else "cpu")

    def look_at_torch(self) -> Outcome:
        """See whether torch can be imported, and whether it is the one of the last checkpoint."""
        if error := self.told.get("error"):
            hint = f"{sys.executable} -m pip install torch, or reinstall andread"
            return failed(f"torch cannot be used: {loose.text(error)}", hint, errors.OS_FAULT)
        version = loose.text(self.told["torch"])
        recorded = loose.text(self.patient.environment.get("torch"))
        detail = f"{version}, {self._build()}"
        if recorded and recorded != version:
            return warning(
                f"{detail}; the newest checkpoint was made under {recorded}",
                "a replay may differ in the last bits: stop on a checkpoint before you upgrade",
            )
        return ok(detail)

    def _build(self) -> str:
        cuda = self.told.get("cuda")
        return f"built for CUDA {loose.text(cuda)}" if cuda else "built for the CPU alone"

    def look_at_device(self) -> Outcome:
        """See whether the device that the run wants is there, and why not."""
        driver = _driver()
        if self.cuda:
            count = render.count(loose.whole(self.told.get("devices")), "device")
            name = loose.text(self.told.get("name"))
            kind = f"{count}{f', {name}' if name else ''}, driver {driver or 'unknown'}"
            bf16 = self.told.get("bf16")
            return ok(f"{kind}{'' if bf16 is not False else ', no bf16: fp16 is used'}")
        nodes = [name for name in _NODES if not Path("/dev", name).exists()]
        if not driver:
            why, hint = "there is no NVIDIA driver", "install the driver; nvidia-smi tells"
        elif nodes:
            why, hint = f"/dev/{nodes[0]} is missing", "nvidia-modprobe -u -c 0, as root"
        elif not self.told.get("cuda"):
            why, hint = f"torch is {self._build()}", "install a torch that is built for CUDA"
        else:
            why, hint = f"torch cannot use driver {driver}", "nvidia-smi; dmesg"
        if self.patient.device == "cuda":
            return failed(f"the run computes on CUDA, and {why}", hint, errors.TEMPORARY)
        if driver and self.patient.device == "auto":
            return warning(f"the CPU will be used: {why}", hint)
        return ok(f"the CPU computes: {why}")

    def look_at_device_memory(self) -> Outcome:
        """Compare the memory of the device with what the model takes there."""
        if self.device != "cuda" or not self.cuda:
            return skipped("no GPU is used")
        if self.busy:
            return skipped("the run is training on it: what it takes, it has")
        total, free = loose.whole(self.told.get("total")), loose.whole(self.told.get("free"))
        there = f"{render.size(free)} of {render.size(total)} free"
        wanted = self._need("cuda")
        if wanted is None:
            return ok(there)
        least = wanted.device + _CONTEXT
        detail = f"{there}, about {render.size(least)} needed ({self._parts(wanted)})"
        hint = "lower [engine] micro_batch, which changes no trajectory"
        if least > total:
            return failed(detail, hint, errors.OS_FAULT)
        if least > free:
            return warning(detail, "nvidia-smi shows who holds the rest; or " + hint)
        return ok(detail)

    def look_at_host_memory(self) -> Outcome:
        """Compare the memory of the host with what is held there, the staging buffer included."""
        memory = psutil.virtual_memory()
        there = f"{render.size(memory.available)} of {render.size(memory.total)} available"
        wanted = self._need(self.device)
        if wanted is None:
            return ok(there)
        on_host = 0 if self.device == "cuda" else wanted.device
        least = _HOST[self.device] + wanted.staging + on_host
        parts = f"staging {render.size(wanted.staging)}"
        if on_host:
            parts += f", {self._parts(wanted)}"
        detail = f"{there}, about {render.size(least)} needed ({parts})"
        if least > memory.total:
            hint = "a smaller model or [engine] micro_batch; the out-of-memory killer ends the run"
            return failed(detail, hint, errors.OS_FAULT)
        if self.patient.pid is None and least > memory.available:
            return warning(detail, "end what else holds memory, or add swap")
        return ok(detail)

    def look_at_compiler(self) -> Outcome:
        """See whether `torch.compile` can build kernels, and run what it builds."""
        made = self.patient.settings
        if made is None or not made.engine.compile:
            return skipped("[engine] compile is off")
        place = Path(
            os.environ.get("TORCHINDUCTOR_CACHE_DIR") or os.environ.get("TMPDIR") or "/tmp"
        )
        if os.statvfs(place).f_flag & os.ST_NOEXEC:
            hint = "TORCHINDUCTOR_CACHE_DIR names another place"
            return failed(
                f"{place} is mounted noexec: no kernel can be loaded", hint, errors.CONFIG
            )
        names = (os.environ.get("CXX"), "g++", "c++", "clang++")
        found = next((path for name in names if name and (path := which(name))), None)
        if found is None:
            return failed("there is no C++ compiler", "install g++", errors.CONFIG)
        return ok(f"{found}, kernels in {place}")

    def _need(self, device: str) -> Need | None:
        """Return what the run takes on `device`, None where its size is not known."""
        if self.patient.settings is None or not self.patient.n_params:
            return None
        return need(self.patient.settings, self.patient.n_params, device)

    def _parts(self, wanted: Need) -> str:
        activations = render.size(wanted.activations) if wanted.activations else "unknown"
        return f"weights, gradients, m, v {render.size(wanted.state)}, activations {activations}"


def _driver() -> str:
    """Return the version of the NVIDIA driver, empty if there is none."""
    try:
        found = re.search(r"Module\s+(?:for \S+\s+)?([0-9][0-9.]+)", _DRIVER.read_text())
    except OSError:
        return ""
    return found[1] if found else "unknown"


def checks(patient: Patient) -> list[Check]:
    """Return the checks of what computes."""
    computer = Computer(patient)
    return [
        Check("torch", computer.look_at_torch),
        Check("device", computer.look_at_device),
        Check("device memory", computer.look_at_device_memory),
        Check("host memory", computer.look_at_host_memory),
        Check("compiler", computer.look_at_compiler),
    ]
