"""Identity of processes, and a clock that nobody sets."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from andread.rundir import clock
from andread.rundir.clock import ProcessIdentity
from tests.rundir.helpers import end, python, spawn


def test_own_identity_is_what_another_process_sees() -> None:
    own = ProcessIdentity.own()
    done = python(
        "import sys; from andread.rundir import clock\n"
        "print(clock.boot_id(), sys.argv[1], clock.start_ticks(int(sys.argv[1])))",
        os.getpid(),
    )
    assert done.stdout.split() == [own.boot, str(own.pid), str(own.ticks)]
    assert own == ProcessIdentity.own()


def test_start_ticks_are_those_of_the_start() -> None:
    before = clock.boot_seconds()
    process = spawn("print('ready', flush=True); input()")
    ticks = clock.start_ticks(process.pid)
    assert ticks is not None
    started = ticks / os.sysconf("SC_CLK_TCK")
    assert before - 0.1 <= started <= clock.boot_seconds() + 0.1
    end(process)
    assert clock.start_ticks(process.pid) is None


def test_no_such_process() -> None:
    assert clock.start_ticks(2**22 + 1) is None
    assert clock.start_ticks(0) is None
    assert clock.start_ticks(-1) is None


def test_a_name_with_spaces_and_brackets_misleads_nobody(tmp_path: Path) -> None:
    program = tmp_path / ") 1 (x y) S 1 2 3"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "60"])
    try:
        for _ in range(100):
            if b") 1 (x" in Path(f"/proc/{process.pid}/stat").read_bytes():
                break
            time.sleep(0.01)
        ticks = clock.start_ticks(process.pid)
        own = clock.start_ticks(os.getpid())
        assert ticks is not None and own is not None
        assert own <= ticks <= clock.boot_seconds() * os.sysconf("SC_CLK_TCK") + 1
    finally:
        process.kill()
        process.wait()


def test_boot_clock_agrees_with_the_kernel() -> None:
    up = float(Path("/proc/uptime").read_text().split()[0])
    assert abs(clock.boot_seconds() - up) < 1.0
    first = clock.boot_seconds()
    assert clock.boot_seconds() >= first


def test_boot_id_is_the_kernels() -> None:
    assert clock.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert len(clock.boot_id()) == 36
