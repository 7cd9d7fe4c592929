"""What a machine's owner hopes never to see: a disk gone slow, memory gone.

Both are real: the kernel throttles a disk that is the test's alone, and its out-of-memory killer
takes the daemon. They need controllers, which a host may keep for itself.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.systemd.guest import Service
from tests.systemd.machine import Machine

_THROTTLE = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
_MEMORY = Path("/sys/fs/cgroup/memory")


class Disk:
    """A small ext4 that can be slowed down."""

    def __init__(self, device: str) -> None:
        self.device = device
        number = os.stat(device).st_rdev  # noqa: PTH116 - of a device
        self.numbers = (str(os.major(number)), str(os.minor(number)))

    def slow(self, rate: int) -> None:
        """Let no more than `rate` bytes a second be written; 0: as many as it can."""
        _THROTTLE.write_text(f"{':'.join(self.numbers)} {rate}")


@contextlib.contextmanager
def disk(machine: Machine) -> Iterator[Disk]:
    """Make a disk, to be mounted in the machine as /dev/slow."""
    if not _THROTTLE.exists():
        pytest.skip(f"NOT TESTED: a slow disk, for there is no {_THROTTLE}")
    file = machine.disk / "slow.img"
    with file.open("wb") as stream:
        os.truncate(stream.fileno(), 256 << 20)
    said = subprocess.run(
        ["losetup", "--find", "--show", str(file)], capture_output=True, text=True
    )
    if said.returncode:
        pytest.skip(f"NOT TESTED: a slow disk, for there is no loop device: {said.stderr}")
    made = Disk(said.stdout.strip())
    try:
        subprocess.run(["mkfs.ext4", "-q", made.device], check=True, capture_output=True)
        machine.do("mknod", "/dev/slow", "b", *made.numbers)
        yield made
    finally:
        made.slow(0)
        machine.run("rm", "-f", "/dev/slow")
        subprocess.run(["losetup", "--detach", made.device], check=True)
        file.unlink()


@contextlib.contextmanager
def little_memory(service: Service, size: int) -> Iterator[None]:
    """Leave the daemon, which runs, `size` bytes more than it has."""
    controllers = service.machine.do("cat", "/sys/fs/cgroup/cgroup.controllers").split()
    if "memory" in controllers:
        more = int(service.show("MemoryCurrent")) + size
        options = (f"MemoryMax={more}", "MemorySwapMax=0")
        service.machine.do("systemctl", "set-property", "--runtime", service.unit, *options)
        yield
        return
    if not (_MEMORY / "memory.limit_in_bytes").exists():
        pytest.skip("NOT TESTED: the out-of-memory killer, for there is no memory controller")
    group = _MEMORY / f"andread-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(size))
        # What a process has stays on its old account. The pid is the machine's: so is the writer.
        inside = ["nsenter", "-t", str(service.machine.pid), "-p", "--"]
        command = f"echo {service.show('MainPID')} > {group}/cgroup.procs"
        subprocess.run([*inside, "sh", "-c", command], check=True)
        yield
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (_MEMORY / "cgroup.procs").write_text(pid)
        service.until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
