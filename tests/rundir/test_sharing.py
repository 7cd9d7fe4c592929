"""Immutable files given to another directory: by reflink, hard link or copy, on real disks."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from andread.rundir import sharing
from andread.rundir.errors import DataError
from andread.rundir.sharing import COPY, LINK, REFLINK, Transfer
from tests.rundir import helpers

CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "step_000001.bin"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def reflinking(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system that can reflink: btrfs or xfs on a loop device."""
    image, place = tmp_path / "image", tmp_path / "reflinking"
    place.mkdir()
    maker = shutil.which("mkfs.btrfs") or shutil.which("mkfs.xfs")
    if maker is None:
        pytest.skip("NO mkfs.btrfs OR mkfs.xfs HERE, reflinks go untested")
    with image.open("wb") as stream:
        stream.truncate(512 << 20)
    for command in ([maker, "-q", image], ["mount", "-o", "loop", image, place]):
        done = subprocess.run(list(map(str, command)), capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"CANNOT MAKE A DISK THAT REFLINKS: {done.stderr!r}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def share(source: Path, target: Path) -> tuple[str, str | None]:
    with Transfer(source, target) as transfer:
        return transfer.how, transfer.finish()


def test_on_one_file_system_nothing_is_copied(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "there.bin"
    how, copied = share(source, target)
    assert how in (LINK, REFLINK) and copied is None
    assert target.read_bytes() == CONTENT
    assert (target.stat().st_ino == source.stat().st_ino) == (how == LINK)
    source.unlink()
    assert target.read_bytes() == CONTENT
    assert not sharing.must_copy(target, tmp_path)


def test_a_reflink_is_a_file_of_its_own(reflinking: Path) -> None:
    source, target = reflinking / "a.bin", reflinking / "b.bin"
    source.write_bytes(CONTENT)
    assert share(source, target) == (REFLINK, None)
    assert target.stat().st_ino != source.stat().st_ino and target.stat().st_nlink == 1
    with source.open("r+b") as stream:  # a bad disk, a bad tool
        stream.write(b"damaged")
    assert target.read_bytes() == CONTENT
    assert helpers.temporaries(reflinking) == []


def test_across_file_systems_it_is_a_copy(
    source: Path, tmpfs: Callable[[str], Path], tmp_path: Path
) -> None:
    disk = tmpfs("4m")
    assert sharing.must_copy(source, disk)
    how, copied = share(source, disk / "there.bin")
    assert (how, copied) == (COPY, hashlib.sha256(CONTENT).hexdigest())
    assert (disk / "there.bin").read_bytes() == CONTENT
    assert helpers.temporaries(disk) == []


def test_a_copy_that_does_not_fit_is_noticed_before_a_byte_is_written(
    source: Path, tmpfs: Callable[[str], Path]
) -> None:
    disk = tmpfs("128k")
    with pytest.raises(OSError, match="No space left"):
        Transfer(source, disk / "there.bin")
    assert list(disk.iterdir()) == []


def test_where_links_are_forbidden_it_is_a_copy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with fs.protected_hardlinks and a file of somebody else."""

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(1, os.strerror(1))

    monkeypatch.setattr(sharing.disk, "link", forbidden)
    monkeypatch.setattr(sharing.files.Staged, "clone", forbidden)
    assert share(source, tmp_path / "there.bin")[0] == COPY
    assert (tmp_path / "there.bin").read_bytes() == CONTENT


def test_a_full_disk_is_not_taken_for_a_missing_ability(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(sharing.files.Staged, "clone", full)
    with pytest.raises(OSError, match="No space left"):
        Transfer(source, tmp_path / "there.bin")
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name]


def test_given_up_nothing_stays(source: Path, tmpfs: Callable[[str], Path]) -> None:
    disk = tmpfs("4m")
    before = helpers.descriptors()
    Transfer(source, disk / "there.bin").close()
    assert list(disk.iterdir()) == [] and helpers.descriptors() == before


@pytest.mark.parametrize("kind", helpers.STRANGERS)
def test_only_regular_files_are_shared(source: Path, tmp_path: Path, kind: str) -> None:
    helpers.put_stranger(source, kind)
    with pytest.raises(DataError, match="not a regular file"):
        Transfer(source, tmp_path / "there.bin")
    assert not (tmp_path / "there.bin").exists()
