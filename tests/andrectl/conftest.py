"""Run directories, a runner for andrectl, and a daemon that only keeps the protocol."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from andread.rundir import commit, files, lock
from andread.rundir.companion import Companion
from andread.rundir.history import LossHistory
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import Policy, write_policies
from andrectl import supervisor
from andrectl.cli import main
from andrectl.template import RECIPES, run_toml

ROOT = Path(__file__).parents[2]
N_PARAMS = 671_744
Andrectl = Callable[..., Result]


@pytest.fixture
def andrectl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Andrectl:
    """Run a command line in this process, in an empty folder and with no state directory."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    monkeypatch.delenv("ANDREAD_RUN", raising=False)
    monkeypatch.setattr("andrectl.selection.state_directory", lambda _: tmp_path / "state")

    def call(*arguments: object) -> Result:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Return a run that has never started."""
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    sources = [{"name": name, "paths": [f"{name}.txt"]} for name in ("books", "code")]
    toml = run_toml("andrea-nano", RECIPES["andrea-nano"], 1, sources)
    files.replace(directory.settings, toml.encode())
    write_policies(directory.policy, [Policy()])
    return directory


def image(step: int, n_params: int = N_PARAMS) -> bytes:
    """Return a checkpoint file."""
    return struct.pack("<ii", step, n_params) + bytes(12 * n_params)


@pytest.fixture
def trained(run: RunDirectory) -> RunDirectory:
    """Return a stopped run of 250 recorded steps with checkpoints of steps 100 and 200."""
    history = LossHistory.create(run.history)
    for step in range(1, 251):
        pulls = {"books": 24, "code": 24}
        history.record({"step": step, "loss": 6.0 - step / 100, "pulls": pulls})
        if step in (100, 200):
            prefix = history.prefix

            def vouch(digest: str, step: int = step, prefix: object = prefix) -> Companion:
                return Companion(
                    step=step,
                    n_params=N_PARAMS,
                    sha256=digest,
                    history_length=prefix.length,
                    history_sha256=prefix.sha256,
                    policy="p",
                    reasons=("cadence",),
                    t=1.0,
                )

            commit.commit(run, image(step), history, vouch)
    history.close()
    return run


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, run: RunDirectory) -> Iterator[Callable[[str], None]]:
    """Put the fake daemon in the place of the real one; choose its mode."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def choose(mode: str) -> None:
        script = Path(__file__).with_name("fake_daemon.py")
        line = [sys.executable, str(script), str(run.path), mode]
        monkeypatch.setattr(supervisor, "command", lambda *_: line)

    yield choose
    if (pid := lock.holder(run.lock)) is not None:
        os.kill(pid, 9)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def python(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python process at the repository's root."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(name="python")
def python_fixture() -> Callable[..., subprocess.CompletedProcess[str]]:
    return python


@pytest.fixture(name="image")
def image_fixture() -> Callable[..., bytes]:
    return image
