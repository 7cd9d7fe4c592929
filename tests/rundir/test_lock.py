"""Who owns a run, told by the kernel: across processes, forks, deaths and recycled pids."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from andread.rundir import disk, lock, presence
from andread.rundir.errors import AccessError, AndreadError, BusyError, DataError
from andread.rundir.lock import RunLock
from tests.rundir.helpers import ROOT, STRANGERS, descriptors, end, put_stranger, python, spawn

HOLD = """
import os, signal, sys, time
from pathlib import Path
from andread.rundir.lock import RunLock
held = RunLock.acquire(Path(sys.argv[1]))
held.describe({"phase": "training", "pid": os.getpid()})
def told(number, frame):
    Path(sys.argv[1] + ".told").write_text(signal.Signals(number).name)
signal.signal(signal.SIGUSR1, told)
print("ready", flush=True)
while True:
    signal.pause()
"""


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_holder_is_seen_from_another_process_and_undisturbed(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert lock.holder(path) is None
    process = spawn(HOLD, path)
    for _ in range(50):
        assert lock.holder(path) == process.pid
    assert lock.describe(path) == {"phase": "training", "pid": process.pid}
    assert presence.read(path).phase == "training"
    with pytest.raises(BusyError, match=rf"pid {process.pid}$"):
        RunLock.acquire(path)
    assert lock.holder(path) == process.pid, "a failed try takes nothing from the holder"
    end(process)


def test_lock_dies_with_a_killed_holder(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    process = spawn(HOLD, path)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert lock.holder(path) is None
    assert lock.describe(path)["phase"] == "training", "its last words stay"
    with RunLock.acquire(path):
        pass


def test_forked_child_does_not_hold_it(tmp_path: Path) -> None:
    script = """
import os, sys, time
from pathlib import Path
from andread.rundir.lock import RunLock
held = RunLock.acquire(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
os._exit(0)
"""
    path = tmp_path / ".lock"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.wait()
        try:
            assert Path(f"/proc/{child}").exists(), "the child is still there"
            assert lock.holder(path) is None
            RunLock.acquire(path).release()
        finally:
            os.kill(child, signal.SIGKILL)


def test_child_that_ends_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    script = """
import os, subprocess, sys
from pathlib import Path
from andread.rundir.lock import RunLock
held = RunLock.acquire(Path(sys.argv[1]))
subprocess.run([sys.executable, "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))"])
if os.fork() == 0:
    held.release()
    os._exit(0)
os.wait()
print("ready", flush=True)
input()
"""
    path = tmp_path / ".lock"
    process = spawn(script, path)
    wait_for(lambda: lock.holder(path) == process.pid)
    end(process)


def test_release_and_reacquire(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    held = descriptors()
    with RunLock.acquire(path) as taken:
        taken.describe({"phase": "starting"})
        script = "import sys; from pathlib import Path; from andread.rundir import lock\n"
        done = python(script + "print(lock.holder(Path(sys.argv[1])))", path)
        assert done.stdout.strip() == str(os.getpid()), done.stderr
    taken.release()
    assert lock.holder(path) is None
    assert descriptors() == held
    assert path.exists(), "never unlinked"


def test_waiting_ends_when_the_holder_does(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    process = spawn(HOLD, path)
    polled = 0

    def stopping() -> bool:
        nonlocal polled
        polled += 1
        if polled == 3:
            process.kill()
        return False

    with RunLock.acquire(path, wait=30, stopping=stopping):
        assert polled >= 3
    end(process)


def test_waiting_ends_when_told_to_stop(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    process = spawn(HOLD, path)
    held = descriptors()
    begun = time.monotonic()
    with pytest.raises(BusyError):
        RunLock.acquire(path, wait=30, stopping=lambda: time.monotonic() > begun + 0.2)
    assert 0.2 <= time.monotonic() - begun < 5
    begun = time.monotonic()
    with pytest.raises(BusyError):
        RunLock.acquire(path, wait=0.3)
    assert 0.3 <= time.monotonic() - begun < 5
    assert descriptors() == held
    end(process)


# ---------------------------------------------------------------- its content


def test_content_is_replaced_whole_by_a_shorter_and_a_longer_one(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with RunLock.acquire(path) as taken:
        # in this very process a reader would drop the lock: read the bytes of a copy instead
        copy = tmp_path / "copy"
        for size in (10, 3, 3000, 5, 5000, 70_000, 20):
            taken.describe({"x": "y" * size})
            done = subprocess.run(["cp", str(path), str(copy)], check=True)
            assert done.returncode == 0
            assert lock.describe(copy) == {"x": "y" * size}


def test_next_owner_replaces_what_the_last_one_wrote(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with RunLock.acquire(path) as taken:
        taken.describe({"x": "y" * 9000})
    with RunLock.acquire(path) as taken:
        taken.describe({"z": 1})
    assert lock.describe(path) == {"z": 1}


def test_what_is_described_never_goes_to_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread describes while another finds the lock's file gone and opens others."""
    inside, go_on = threading.Event(), threading.Event()
    real = disk.pwrite

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        inside.set()
        assert go_on.wait(30)
        return real(descriptor, data, offset)

    def mend() -> None:
        held.confirm()
        with (tmp_path / "other").open("wb"):  # it may get the number that was closed
            mended.set()
            go_on.wait(30)
            describing.join(30)

    mended = threading.Event()
    with RunLock.acquire(tmp_path / ".lock") as held:
        (tmp_path / ".lock").unlink()
        monkeypatch.setattr(disk, "pwrite", pwrite)
        describing = threading.Thread(target=held.describe, args=({"phase": "training"},))
        describing.start()
        assert inside.wait(30)
        mending = threading.Thread(target=mend)
        mending.start()
        mended.wait(0.5)  # in vain: the description comes first
        go_on.set()
        for thread in (describing, mending):
            thread.join(30)
            assert not thread.is_alive()
    assert (tmp_path / "other").read_bytes() == b""


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"3", b"\0" * 4096, b"[" * 4096, b"\xff"])
def test_content_is_information_only(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / ".lock"
    path.write_bytes(data)
    assert lock.describe(path) == {}
    assert presence.read(path) == presence.Presence()
    assert lock.describe(tmp_path / "absent") == {}
    RunLock.acquire(path).release()


def test_presence_drops_what_it_does_not_know_and_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_bytes(b'{"pid":3,"step":7,"later":true,"loss":null}')
    assert presence.read(path) == presence.Presence(pid=3, step=7)
    path.write_bytes(b'{"pid":"three"}')
    assert presence.read(path) == presence.Presence()


def test_full_disk_does_not_disturb_the_owner(tmpfs: Callable[[str], Path]) -> None:
    disk = tmpfs("16k")
    with RunLock.acquire(disk / ".lock") as taken:
        (disk / "ballast").write_bytes(bytes(16 << 10))
        taken.describe({"phase": "training"})
    assert lock.describe(disk / ".lock") == {}


def test_read_only_disk_is_told(
    tmpfs: Callable[[str], Path], read_only: Callable[[Path], None]
) -> None:
    disk = tmpfs("16k")
    read_only(disk)
    with pytest.raises(AndreadError, match="Read-only"):
        RunLock.acquire(disk / ".lock")


@pytest.mark.parametrize("kind", sorted(set(STRANGERS) - {"dangling"}))
def test_no_regular_file_never_hangs(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ".lock"
    put_stranger(path, kind)
    held = descriptors()
    with pytest.raises(DataError, match="not a regular file"):
        RunLock.acquire(path)
    with pytest.raises(DataError, match="not a regular file"):
        lock.holder(path)
    assert lock.describe(path) == {}
    assert descriptors() == held


# ---------------------------------------------------------------- signals


def test_signal_reaches_the_holder_and_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    process = spawn(HOLD, path)
    other = spawn(HOLD, tmp_path / "other")
    assert lock.signal_holder(path, signal.SIGUSR1) == process.pid
    wait_for(lambda: (tmp_path / ".lock.told").exists())
    time.sleep(0.1)
    assert not (tmp_path / "other.told").exists()
    end(process)
    end(other)
    assert lock.signal_holder(path, signal.SIGUSR1) is None
    assert lock.signal_holder(tmp_path / "absent", signal.SIGUSR1) is None


def test_recycled_pid_is_never_signalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between reading the pid and pinning it the holder dies and an innocent takes its pid.

    Both are real processes; only the moment is arranged: the pidfd that the kernel would give
    for a recycled pid is that of the innocent one.
    """
    path = tmp_path / ".lock"
    process = spawn(HOLD, path)
    innocent = spawn(HOLD, tmp_path / "innocent")
    pinned = os.pidfd_open

    def recycled(pid: int, flags: int = 0) -> int:
        assert pid == process.pid
        end(process)
        return pinned(innocent.pid)

    monkeypatch.setattr(os, "pidfd_open", recycled)
    assert lock.signal_holder(path, signal.SIGUSR1) is None
    time.sleep(0.2)
    assert not (tmp_path / "innocent.told").exists()
    assert innocent.poll() is None
    end(innocent)


def test_holder_that_changes_meanwhile_is_asked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".lock"
    first = spawn(HOLD, path)
    later: list[subprocess.Popen[str]] = []
    pinned = os.pidfd_open

    def changing(pid: int, flags: int = 0) -> int:
        descriptor = pinned(pid)
        if not later:
            end(first)
            later.append(spawn(HOLD, path))
        return descriptor

    held = descriptors()
    monkeypatch.setattr(os, "pidfd_open", changing)
    assert lock.signal_holder(path, signal.SIGUSR1) == later[0].pid
    wait_for(lambda: (tmp_path / ".lock.told").exists())
    end(later[0])
    assert descriptors() <= held


def test_holder_of_another_user_is_an_access_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents:
        if parent == Path("/tmp"):
            break
        parent.chmod(0o755)
    path = tmp_path / ".lock"
    process = spawn(HOLD, path)
    path.chmod(0o644)
    script = """
import os, signal, sys
from pathlib import Path
from andread.rundir import lock
from andread.rundir.errors import AccessError
os.setuid(65534)
try:
    lock.signal_holder(Path(sys.argv[1]), signal.SIGUSR1)
except AccessError as error:
    print("refused", lock.holder(Path(sys.argv[1])))
"""
    done = python(script, path)
    assert done.stdout.split() == ["refused", str(process.pid)], done.stderr
    assert not (tmp_path / ".lock.told").exists()
    end(process)
    assert AccessError.exit_code == 77


def test_holder_in_a_pid_namespace_that_is_not_ours(tmp_path: Path) -> None:
    """F_GETLK tells 0 for a process that cannot be seen: held, but nobody to signal."""
    path = tmp_path / ".lock"
    process = spawn(HOLD, path)
    script = """
import signal, sys
from pathlib import Path
from andread.rundir import lock
from andread.rundir.errors import AndreadError
from andread.rundir.lock import RunLock
try:
    RunLock.acquire(Path(sys.argv[1]))
except AndreadError as error:
    print(type(error).__name__)
print(lock.holder(Path(sys.argv[1])) is not None)
try:
    lock.signal_holder(Path(sys.argv[1]), signal.SIGUSR1)
except AndreadError as error:
    print(type(error).__name__)
"""
    done = subprocess.run(
        ["unshare", "--pid", "--fork", sys.executable, "-c", script, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    end(process)
    if "unshare" in done.stderr:
        pytest.skip(f"NO PID NAMESPACES HERE: {done.stderr.strip()}")
    assert done.stdout.split() == ["BusyError", "True", "BusyError"], done.stderr


def test_lock_in_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AndreadError) as caught:
        RunLock.acquire(tmp_path / "absent" / ".lock")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOENT


def test_a_lock_of_gigabytes_is_rewritten_small(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.touch()
    os.truncate(path, 3 << 30)
    with RunLock.acquire(path) as taken:
        taken.describe({"phase": "starting"})
        assert path.stat().st_size == 4096
    assert lock.describe(path) == {"phase": "starting"}
