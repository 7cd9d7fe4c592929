"""The disk: what the file system really does, how fast it is, and whether the plan fits.

Everything is tried in a scratch directory beside the run, in small files, and removed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from andread.rundir import commit, errors, files
from andread.rundir.lock import RunLock
from andrectl import loose, render
from andrectl.checks import Check, Outcome, failed, ok, skipped, warning
from andrectl.cost import cost

if TYPE_CHECKING:
    from andrectl.doctor.patient import Patient

_PREFIX: Final = ".doctor-"
_STALE: Final = 3600.0
_NETWORK: Final = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "beegfs", "afs", "gpfs")
)
_MEMORY: Final = frozenset(("tmpfs", "ramfs"))
_LEAST: Final = 4 << 20
_MOST: Final = 64 << 20
_BLOCK: Final = 4096
_HOLDER: Final = """
import sys
from pathlib import Path
from andread.rundir import lock
print(lock.holder(Path(sys.argv[1])))
"""


@dataclass(frozen=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    kind: str
    point: str
    source: str
    options: tuple[str, ...]


def mount_of(path: Path, mountinfo: str = "") -> Mount | None:
    """Return the mount that `path` is on; the last one made wins where several cover it."""
    text = mountinfo or Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    real, found = path.resolve(), None
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, after = left.split(), right.split()
        if len(fields) < 6 or len(after) < 2:
            continue
        point = _plain(fields[4])
        if not real.is_relative_to(point):
            continue
        if found is None or len(point) >= len(found.point):
            found = Mount(after[0], point, _plain(after[1]), tuple(fields[5].split(",")))
    return found


def _plain(escaped: str) -> str:
    """Return a path of mountinfo without its octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), escaped)


def look_at_mount(place: Path) -> Outcome:
    """Name the file system, and what its kind means for a run."""
    mount = mount_of(place)
    return skipped(f"no mount of {place} is known") if mount is None else judge_mount(place, mount)


def judge_mount(place: Path, mount: Mount) -> Outcome:
    """Tell what a run at `place` has to expect of `mount`."""
    told = [name for name in ("ro", "noexec", "sync") if name in mount.options]
    kind = mount.kind + (f" ({', '.join(told)})" if told else "")
    detail = f"{place} is on {kind}, mounted at {mount.point}"
    if "ro" in mount.options:
        hint = f"mount -o remount,rw {mount.point}; dmesg says whether errors made it so"
        return failed(f"{detail}: nothing can be written", hint, errors.IO)
    if mount.kind in _MEMORY:
        return warning(f"{detail}: it is gone after a reboot", "keep runs on a disk")
    if mount.kind == "overlay":
        hint = "mount a volume for the runs"
        return warning(f"{detail}: in a container it goes with the container", hint)
    network = mount.kind in _NETWORK or mount.kind.startswith("fuse.")
    if network:
        hint = "one machine trains a run; the checks below say what the server keeps to"
        return warning(f"{detail}: a network may lose locks, and an fsync is the server's", hint)
    return ok(detail)


@contextlib.contextmanager
def scratch(place: Path) -> Iterator[Path]:
    """Make a scratch directory in `place`, removed afterwards, with those a dead doctor left."""
    for left in place.glob(f"{_PREFIX}*"):
        if left.is_dir() and time.time() - left.stat().st_mtime > _STALE:
            shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def checks(patient: Patient, place: Path) -> list[Check]:
    """Return the checks of what the file system does, tried in the directory `place`."""

    def trial(try_it: Callable[[Path], Outcome]) -> Callable[[], Outcome]:
        return lambda: try_it(place)

    return [
        Check("rename", trial(try_rename)),
        Check("fsync", trial(try_fsync)),
        Check("append", trial(try_append)),
        Check("preallocation", trial(try_preallocation)),
        Check("direct I/O", trial(try_direct)),
        Check("record locks", trial(try_locks)),
        Check("links", trial(try_links)),
        Check("disk speed", lambda: try_speed(patient, place)),
    ]


def try_rename(place: Path) -> Outcome:
    """See whether a rename replaces a file at once, and leaves its readers the old one."""
    old, new = place / "old", place / "new"
    old.write_bytes(b"old")
    new.write_bytes(b"new")
    with files.opened(old) as descriptor:
        new.rename(old)
        kept = os.pread(descriptor, 9, 0)
    if kept != b"old" or old.read_bytes() != b"new" or new.exists():
        return failed("a rename does not replace a file whole", "keep runs on a local disk")
    return ok("replaces a file whole; who has it open keeps the old one")


def try_fsync(place: Path) -> Outcome:
    """See whether files and directories can be made durable."""
    begun = time.monotonic()
    files.replace(place / "durable", secrets.token_bytes(_BLOCK))
    took = time.monotonic() - begun
    return ok(f"of file and directory: {took * 1000:.1f} ms for 4 kB")


def try_append(place: Path) -> Outcome:
    """See whether what two writers append stands in the order of their writes."""
    path = place / "appended"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with files.opened(path, flags) as first, files.opened(path, flags) as second:
        for number in range(8):
            os.write((first, second)[number % 2], b"%d" % number)
    if path.read_bytes() != b"01234567":
        return failed("two writers that append overwrite each other", "keep runs on a local disk")
    return ok("two writers append one after the other")


def try_preallocation(place: Path) -> Outcome:
    """See whether space can be taken before it is written."""
    size = 1 << 20
    with files.opened(place / "allocated", os.O_RDWR | os.O_CREAT) as descriptor:
        os.posix_fallocate(descriptor, 0, size)
        taken = os.fstat(descriptor).st_blocks * 512
    if taken < size:
        return warning("it is not obeyed: a full disk is noticed late, in the middle of a write")
    return ok("space is taken beforehand: a full disk is noticed first")


def try_direct(place: Path) -> Outcome:
    """See whether writes can go past the page cache."""
    with mmap.mmap(-1, _BLOCK) as block:
        block.write(secrets.token_bytes(_BLOCK))
        try:
            with files.opened(place / "direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT) as descriptor:
                os.pwritev(descriptor, [block], 0)
        except OSError as error:
            why = os.strerror(error.errno or 0)
            return warning(
                f"refused ({why}): checkpoints go through the page cache, and slow steps"
            )
        same = (place / "direct").read_bytes() == block[:]
    return ok("past the page cache") if same else failed("what was written is not what is read")


def try_locks(place: Path) -> Outcome:
    """See whether another process is told who holds a record lock."""
    path = place / "lock"
    with RunLock.acquire(path):
        done = subprocess.run(
            [sys.executable, "-c", _HOLDER, str(path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    if done.stdout.strip() != str(os.getpid()):
        seen = done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]
        return failed(
            f"another process does not see who holds a lock (it sees {seen})",
            "two daemons could train this run at once: keep it on a file system with locks",
        )
    return ok("another process sees who holds one")


def try_links(place: Path) -> Outcome:
    """See what a copy of a checkpoint costs: nothing where hard links or reflinks are there."""
    source = place / "linked"
    source.write_bytes(secrets.token_bytes(_BLOCK))
    there = []
    with contextlib.suppress(OSError):
        (place / "link").hardlink_to(source)
        there.append("hard links")
    with (
        contextlib.suppress(OSError),
        files.opened(source) as descriptor,
        files.Staged(place / "clone") as clone,
    ):
        clone.clone(descriptor)
        there.append("reflinks")
    return ok(" and ".join(there) if there else "neither hard links nor reflinks: a copy is whole")


def try_speed(patient: Patient, place: Path) -> Outcome:
    """Write durably, as a checkpoint is written: a little first, then for about a second."""
    free = shutil.disk_usage(place).free
    most = min(max(patient.image, _LEAST), _MOST, free // 4) // _BLOCK * _BLOCK
    if most < 1 << 20:
        return skipped(f"only {render.size(free)} are free")
    size = min(most, _LEAST)
    took = _write(place, size)
    if (more := min(most, int(size / took)) // _BLOCK * _BLOCK) > size:
        size = more
        took = _write(place, size)
    patient.speed = size / took
    detail = f"{render.size(patient.speed)} a second, durable, by {render.size(size)}"
    return judge_speed(patient, detail)


def _write(place: Path, size: int) -> float:
    """Write `size` bytes as a checkpoint; return the seconds until they were durable."""
    piece = secrets.token_bytes(min(size, 1 << 20))
    with mmap.mmap(-1, size) as block:
        for start in range(0, size, len(piece)):
            block[start : start + len(piece)] = piece[: size - start]
        begun = time.monotonic()
        with memoryview(block) as image, files.Staged(place / "speed", size) as staged:
            staged.write_direct(image)
            staged.commit()
        return max(1e-6, time.monotonic() - begun)


def judge_speed(patient: Patient, detail: str) -> Outcome:
    """Compare the time of a checkpoint with the time between two."""
    if not patient.image or not patient.speed:
        return ok(detail)
    took = patient.image / patient.speed
    detail += f": {render.duration(took)} for a checkpoint of {render.size(patient.image)}"
    if patient.pace.write is not None:
        detail += f" (the slowest recent one took {render.duration(patient.pace.write)})"
    if patient.settings is None or patient.pace.step is None:
        return ok(detail)
    period = patient.settings.run.checkpoint_every * patient.pace.step
    if took > period / 2:
        hint = "a faster disk, or a larger [run] checkpoint_every"
        return warning(f"{detail}, one every {render.duration(period)}", hint)
    return ok(detail)


def look_at_space(patient: Patient) -> Outcome:
    """Compare what is free with what retention will keep at its most."""
    free = shutil.disk_usage(patient.place).free
    there = f"{render.size(free)} free"
    if patient.run is None or patient.settings is None or not patient.image:
        return ok(there) if free > 1 << 30 else warning(there, "free some space")
    plan = cost(patient.settings)
    beside = plan.disk_bytes - plan.checkpoints * plan.checkpoint_bytes
    whole = plan.checkpoints * patient.image + beside
    more = max(0, whole - _held(patient))
    kept = f"{render.count(plan.checkpoints, 'checkpoint')} of {render.size(patient.image)}"
    detail = f"{there}, {render.size(more)} more needed for {kept}, {render.size(whole)} in all"
    hint = "free some space, or keep fewer: [run] keep_last, keep_every; andrectl checkpoints"
    if free < patient.image + _BLOCK:
        return failed(f"not even the next checkpoint fits: {detail}", hint, errors.IO)
    if free < 1.1 * more:
        return warning(detail, hint)
    return ok(detail)


def _held(patient: Patient) -> int:
    """Return the bytes of the plan that are on the disk already; pins are beyond the plan."""
    run = patient.run
    assert run is not None, "asked by the caller"
    pins = commit.pinned(run)
    steps = [step for step in run.checkpoint_steps() if step not in pins]
    return sum(loose.file_size(run.checkpoint(s)) for s in steps) + loose.file_size(run.history)
