"""Disks that are really full, really read-only, and gone after the test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from andread.rundir.layout import RunDirectory
from tests.rundir import helpers


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a tmpfs of a given size, such as `64k`, and return where it is."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"CANNOT MOUNT A TMPFS, the full disk goes untested: {done.stderr.strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def read_only() -> Callable[[Path], None]:
    """Make a mount point of `tmpfs` read-only, as a kernel does after a disk error."""

    def remount(path: Path) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)

    return remount


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Return a run with checkpoints of steps 0, 4 and 8 and entries up to 10."""
    return helpers.build_run(tmp_path / "run", (0, 4, 8), 10)
