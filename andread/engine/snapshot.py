"""Weights, m and v between the device and the staging block that is laid out like the file.

They change in the optimizer alone. So on CUDA a side stream copies them into pinned memory while
the next step's forward and backward run, and only its optimizer waits, on the device. On the CPU
there is nothing to overlap: the copy is made at once, in all threads.
"""

from __future__ import annotations

import torch

from andread.engine.store import FlatStore
from andread.rundir.staging import Staging


class FlatSnapshot:
    """See `interface.Snapshot`."""

    def __init__(self, step: int, staging: Staging, copied: torch.cuda.Event | None) -> None:
        self.step = step
        self._staging = staging
        self._copied = copied

    def image(self) -> memoryview:
        """Return the file; see `interface.Snapshot.image`."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._staging.file


class Copier:
    """Copies a store into `staging` and back. One snapshot at a time."""

    def __init__(self, staging: Staging, device: torch.device) -> None:
        self.staging = staging
        self._tensors = tuple(
            torch.frombuffer(region, dtype=torch.float32) for region in staging.regions
        )
        self._stream: torch.cuda.Stream | None = None
        self._copied: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            _pin(staging)

    def copy(self, store: FlatStore, step: int) -> FlatSnapshot:
        """Begin to copy `store` as it is after `step`."""
        self.staging.stamp(step)
        if self._stream is None:
            self._exchange(store, to_staging=True)
            return FlatSnapshot(step, self.staging, None)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._exchange(store, to_staging=True)
        self._copied = self._stream.record_event()
        return FlatSnapshot(step, self.staging, self._copied)

    def restore(self, store: FlatStore) -> None:
        """Copy what was read into staging into `store`."""
        self._exchange(store, to_staging=False)
        if self._stream is not None:
            torch.cuda.current_stream().synchronize()

    def wait_on_device(self) -> None:
        """Let what follows on the device wait for a copy in flight; the host goes on."""
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)
            self._copied = None

    @torch.no_grad()
    def _exchange(self, store: FlatStore, to_staging: bool) -> None:
        for region, tensor in zip(store.regions, self._tensors, strict=True):
            target, source = (tensor, region) if to_staging else (region, tensor)
            target.copy_(source, non_blocking=True)


def _pin(staging: Staging) -> None:
    """Lock the block for direct copies from the device; unpinned, copies are slower and wait."""
    address = torch.frombuffer(staging.file, dtype=torch.uint8).data_ptr()
    result = torch.cuda.cudart().cudaHostRegister(  # type: ignore[no-untyped-call]
        address, len(staging.file), 0
    )
    torch.cuda.check_error(int(result))
