"""Real daemons in real run directories: small models on real text, started, signalled, killed.

The text is Python's own documentation topics, which every machine with Python has.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from andread.curriculum.prepare import prepare
from andread.rundir import events, history, presence
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import Policy, write_policies
from andread.rundir.run_toml import read_settings

RUN_TOML = """\
[run]
steps = {steps}
seed = 7
checkpoint_every = {every}
sample_every = {every}
keep_last = {keep}

[model]
width = 32
heads = 2
layers = 2
context = 32
vocabulary = 320

[optimizer]
batch = 8
lr = 3e-3
warmup_steps = 5
decay_steps = 60

[audit]
tokens = 8
validation_windows = 4

[data]
validation = 0.2

[engine]
threads = 1

[[source]]
name = "topics"
paths = ["text/topics"]

[[source]]
name = "license"
paths = ["text/license"]
"""


def write_text(directory: Path) -> None:
    """Write two sources of real text under `directory`/text."""
    from pydoc_data.topics import topics

    for place, name in enumerate(sorted(topics)[:24]):
        path = directory / "text" / "topics" / f"{place:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(topics[name], encoding="utf-8")
    license_path = directory / "text" / "license" / "apache.txt"
    license_path.parent.mkdir(parents=True)
    shutil.copy(Path(__file__).parents[2] / "LICENSE", license_path)


def make_run(directory: Path, steps: int = 60, every: int = 10, keep: int = 100) -> RunDirectory:
    """Make a prepared run that has not begun."""
    run = RunDirectory(directory)
    write_text(directory)
    run.settings.write_text(RUN_TOML.format(steps=steps, every=every, keep=keep), encoding="utf-8")
    write_policies(run.policy, [Policy()])
    prepare(run, read_settings(run.settings))
    return run


def copy_run(run: RunDirectory, directory: Path) -> RunDirectory:
    """Copy a run directory that no daemon holds."""
    shutil.copytree(run.path, directory)
    return RunDirectory(directory)


class Daemon:
    """One `andread` process, its stderr in a file."""

    def __init__(self, run: RunDirectory, *arguments: str, env: dict[str, str] | None = None):
        self.run = run
        self.log = run.path / "daemon.stderr"
        self.process = self.start(arguments, env)

    def start(
        self, arguments: Sequence[str], env: dict[str, str] | None
    ) -> subprocess.Popen[bytes]:
        """Start the process."""
        run = self.run
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        try:
            with self.log.open("ab") as stream:
                return subprocess.Popen(
                    [sys.executable, "-m", "andread", "--run", str(run.path), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stream,
                    env={**os.environ, **(env or {})},
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def wait(self, timeout: float = 120) -> int:
        """Wait for the end; return the exit code, negative for a signal."""
        return self.process.wait(timeout)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def until(self, condition: Callable[[], Any], timeout: float = 120) -> Any:
        """Wait for `condition` to hold while the daemon lives; return what it gave."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if found := condition():
                return found
            if self.process.poll() is not None:
                if found := condition():
                    return found
                raise AssertionError(f"ended with {self.process.returncode}:\n{self.stderr()}")
            time.sleep(0.002)
        raise AssertionError(f"timed out:\n{self.stderr()}")

    def until_step(self, step: int) -> None:
        """Wait until `step` is recorded."""
        self.until(lambda: last_step(self.run) >= step)

    def until_event(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Wait for an event of this daemon."""
        return self.until(lambda: find(self.run, kind, **fields))

    def until_phase(self, phase: str) -> None:
        self.until(
            lambda: (p := presence.read(self.run.lock)).phase == phase and p.pid == self.process.pid
        )

    def stderr(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running(run: RunDirectory, *arguments: str, **options: Any) -> Iterator[Daemon]:
    """Run a daemon that does not outlive the block."""
    daemon = Daemon(run, *arguments, **options)
    try:
        yield daemon
    finally:
        daemon.kill()


def train(run: RunDirectory, *arguments: str, code: int = 0) -> str:
    """Run a daemon to its end; return its stderr."""
    with running(run, *arguments) as daemon:
        assert daemon.wait() == code, daemon.stderr()
        return daemon.stderr()


def find(run: RunDirectory, kind: str, **fields: Any) -> dict[str, Any] | None:
    """Return the last event of `kind` with these fields."""
    found = None
    for event in events.read(run.events):
        if event["event"] == kind and all(event.get(k) == v for k, v in fields.items()):
            found = event
    return found


def count(run: RunDirectory, kind: str, **fields: Any) -> int:
    return sum(
        event["event"] == kind and all(event.get(k) == v for k, v in fields.items())
        for event in events.read(run.events)
    )


def last_step(run: RunDirectory) -> int:
    entries = history.tail(run.history, 1)
    return int(entries[-1]["step"]) if entries else 0


def entries(run: RunDirectory) -> list[dict[str, Any]]:
    """Return the loss history without its times, read as the plain JSON that it is."""
    loaded = orjson.loads(run.history.read_bytes())
    return [{key: value for key, value in entry.items() if key != "t"} for entry in loaded]


def image(path: Path) -> tuple[int, int, bytes, bytes, bytes]:
    """Read a checkpoint with nothing but `struct`: step, n, weights, m, v."""
    data = path.read_bytes()
    step, n = struct.unpack_from("<ii", data)
    assert len(data) == 8 + 12 * n
    return step, n, data[8 : 8 + 4 * n], data[8 + 4 * n : 8 + 8 * n], data[8 + 8 * n :]
