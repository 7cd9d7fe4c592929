"""Bytes made by hand, small runs on disk, and processes to share them with."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from andread.rundir import commit, history
from andread.rundir.companion import Companion
from andread.rundir.layout import RunDirectory

ROOT = Path(__file__).parents[2]
N_PARAMS = 5


def image(step: int, n_params: int = N_PARAMS) -> bytes:
    """Return a checkpoint file, packed with nothing but `struct`."""
    values = [step + index / 8 for index in range(3 * n_params)]
    return struct.pack(f"<ii{3 * n_params}f", step, n_params, *values)


def entry(step: int) -> dict[str, Any]:
    """Return the history entry of `step`, with a loss that needs all its digits."""
    return {
        "step": step,
        "loss": 1 / 3 + 1 / step,
        "lr": 3e-4,
        "grad_norm": 0.1 * step,
        "pulls": {"books": step % 5, "code": 4 - step % 5},
        "t": 1_700_000_000.25 + step,
    }


def history_bytes(entries: Iterable[dict[str, Any]]) -> bytes:
    """Return a whole history file, put together without the code under test."""
    lines = [json.dumps(item, separators=(",", ":")) for item in entries]
    return ("[\n" + ",\n".join(lines) + "\n]\n").encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def vouch_for(loss: history.LossHistory, **more: Any) -> Callable[[str], Companion]:
    """Return a `vouch` for `commit.commit` at the boundary that `loss` stands at."""
    prefix, step = loss.prefix, loss.step

    def vouch(digest: str) -> Companion:
        fields: dict[str, Any] = {
            "step": step,
            "n_params": N_PARAMS,
            "sha256": digest,
            "history_length": prefix.length,
            "history_sha256": prefix.sha256,
            "policy": "p0",
            "reasons": ("cadence",),
            "t": 1_700_000_000.0 + step,
        }
        return Companion(**(fields | more))

    return vouch


def build_run(path: Path, checkpoints: Iterable[int], last: int) -> RunDirectory:
    """Make a run directory with entries up to `last` and a checkpoint at each of `checkpoints`."""
    path.mkdir(exist_ok=True)
    run = RunDirectory(path)
    loss = history.LossHistory.create(run.history)
    wanted = set(checkpoints)
    for step in range(last + 1):
        if step:
            loss.record(entry(step))
        if step in wanted:
            commit.commit(run, image(step), loss, vouch_for(loss))
    loss.sync()
    loss.close()
    return run


def python(script: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `script` in a fresh interpreter over this working tree."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def traced(
    script: str, *arguments: object, trace: Path, options: Iterable[str]
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run `script` under strace with `options`; return how it ended and what strace saw."""
    strace = ["strace", "-f", "-y", "-s", "0", "-o", str(trace), *options]
    done = subprocess.run(
        [*strace, sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done, trace.read_text(errors="replace")


def spawn(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Start `script` in a fresh interpreter and return once it has printed a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the process ended with {process.wait()} before it was ready"
    return process


def end(process: subprocess.Popen[str]) -> None:
    """Kill a process that `spawn` started, and leave nothing open."""
    process.kill()
    process.communicate()


def descriptors() -> set[str]:
    """Return what this process holds open."""
    return {item.name for item in Path("/proc/self/fd").iterdir()}


def temporaries(directory: Path) -> list[str]:
    """Return the names of temporary files left in `directory`."""
    return [item.name for item in directory.iterdir() if ".tmp-" in item.name]


def fill(directory: Path) -> Path:
    """Fill the file system of `directory` to the last byte; unlink the result to give way."""
    path = directory / "ballast"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (1 << 16, 1 << 12, 1):
            while True:
                try:
                    if os.write(descriptor, bytes(size)) < size:
                        break
                except OSError:
                    break
    finally:
        os.close(descriptor)
    return path


STRANGERS = ("fifo", "directory", "symlink", "dangling", "loop", "socket", "device")


def put_stranger(path: Path, kind: str) -> None:
    """Put something that is no regular file where `path` was; a symlink leads to its content."""
    if kind == "symlink":
        original = path.with_name(path.name + ".original")
        if path.exists():
            path.rename(original)
        else:
            original.write_bytes(b"")
        path.symlink_to(original)
        return
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "dangling":
        path.symlink_to(path.with_name("nowhere"))
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    else:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero, which never ends
