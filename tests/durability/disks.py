"""Disks that are real: ext4 on loop devices in memory, cut off from power, filled, broken.

All of it needs root. Where a machine does not allow it these tests fail, for a promise that goes
untested is none; ANDREAD_NO_MOUNT=1 says that this is known, and skips them.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_SHUTDOWN: Final = 0x8004587D
"""_IOR('X', 125, u32): stop the file system. 2: without flushing its journal, as a power cut."""

_NEW_NAMESPACE: Final = 0x00020000

HOSTILE: Final = "noauto_da_alloc,data=writeback"
"""What lets ext4 reorder most: names before bytes, no help for rename."""


def may_mount() -> bool:
    """Tell whether these tests are to be tried; skip them only where that is asked for."""
    if os.environ.get("ANDREAD_NO_MOUNT") == "1":
        pytest.skip("ANDREAD_NO_MOUNT=1: real disks go untested")
    return True


def own_mounts() -> None:
    """Give this process and its children mounts of their own, where it may have them.

    A namespace that others make meanwhile would keep a copy of a mount of ours, and with it the
    file system: one that was cut off would still be there when it is mounted again.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NAMESPACE) == 0:
        subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, check=False)


def command(*arguments: object) -> str:
    """Run a program that must succeed; return what it printed."""
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"{' '.join(map(str, arguments))}: {done.stderr.strip()}\n"
        "these tests mount real file systems and need root; ANDREAD_NO_MOUNT=1 leaves them out"
    )
    return done.stdout.strip()


def _quietly(*arguments: object) -> bool:
    return subprocess.run(list(map(str, arguments)), capture_output=True).returncode == 0


class LoopDisk:
    """An ext4 file system in a file, on a loop device, mounted at `path` or not."""

    def __init__(self, image: Path, path: Path, size: int, options: str = "") -> None:
        self.path = path
        self.options = options
        self._image = image
        self.device = ""
        path.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as stream:
            stream.truncate(size)
        try:
            command("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0", image)
            self.device = command("losetup", "--find", "--show", image)
            self.mount()
        except BaseException:
            self.destroy()
            raise

    def mount(self) -> None:
        """Mount it; after a cut the journal is replayed."""
        options = ["-o", self.options] if self.options else []
        command("mount", "-t", "ext4", *options, self.device, self.path)

    def unmount(self) -> None:
        """Unmount it; a process that was killed may let go of its files a moment later."""
        deadline = time.monotonic() + 10
        while not _quietly("umount", self.path):
            if time.monotonic() > deadline:
                command("umount", self.path)  # says why not
            time.sleep(0.01)
        name = Path(self.device).name
        assert not Path(f"/sys/fs/ext4/{name}").exists(), f"something holds {self.device} mounted"

    def cut(self) -> None:
        """Cut the power: what is not on the disk by now never gets there."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, array.array("I", [2]))
        finally:
            os.close(descriptor)

    def break_down(self) -> None:
        """Have the kernel find an error in it, as on a failing disk."""
        name = Path(self.device).name
        Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("a test", encoding="ascii")

    def destroy(self) -> None:
        """Leave nothing of it, whatever state it is in."""
        for _ in range(2):
            if not os.path.ismount(self.path):
                break
            _quietly("umount", self.path) or _quietly("umount", "--lazy", self.path)
        if self.device:
            _quietly("losetup", "--detach", self.device)
        self._image.unlink(missing_ok=True)


@contextlib.contextmanager
def loop_disk(
    size: int = 64 << 20, options: str = "", within: str = "/dev/shm"
) -> Iterator[LoopDisk]:
    """Make a disk for a while."""
    assert may_mount()
    with tempfile.TemporaryDirectory(prefix="andread-disk-", dir=within) as place:
        disk = LoopDisk(Path(place, "image"), Path(place, "mounted"), size, options)
        try:
            yield disk
        finally:
            disk.destroy()


@contextlib.contextmanager
def memory_disk(size: str) -> Iterator[Path]:
    """Mount a tmpfs of `size`, such as `2500k`, for a while."""
    assert may_mount()
    with tempfile.TemporaryDirectory(prefix="andread-memory-", dir="/dev/shm") as place:
        command("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place)
        try:
            yield Path(place)
        finally:
            _quietly("umount", place) or _quietly("umount", "--lazy", place)
