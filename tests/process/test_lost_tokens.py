"""Tokens that vanish or shrink under a running daemon: told, with the documented exit codes."""

import os
import signal
from pathlib import Path

from andread.rundir import errors
from andread.rundir.layout import RunDirectory
from tests.process.harness import copy_run, entries, find, running, train
from tests.process.pivoting import set_steps


def test_tokens_that_vanish_raise_an_alarm_and_stop_the_next_start(
    run: RunDirectory, finished: RunDirectory
) -> None:
    path = run.tokens("topics", "train")
    aside = run.path / "aside"
    with running(run) as daemon:
        daemon.until_step(3)
        path.rename(aside)
        fault = daemon.until_event("fault", what="sources")
        assert "topics.train.bin" in fault["detail"] and "restore" in fault["detail"]
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == errors.OK
    said = train(run, code=errors.NO_INPUT)
    assert "topics.train.bin does not exist" in said and "restore it" in said
    stopped = find(run, "stopped")
    assert stopped is not None and stopped["exit_code"] == errors.NO_INPUT
    aside.rename(path)
    train(run)
    assert entries(run) == entries(finished)


def test_tokens_that_come_back_heal_the_alarm(run: RunDirectory, tmp_path: Path) -> None:
    path, aside = run.tokens("license", "train"), tmp_path / "aside"
    set_steps(run, 1_000_000)
    with running(run) as daemon:
        daemon.until_step(3)
        path.rename(aside)
        daemon.until_event("fault", what="sources")
        aside.rename(path)
        daemon.send(signal.SIGUSR1)
        daemon.until_event("healed", what="sources")
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == errors.OK


def test_tokens_that_shrink_end_the_run_at_their_next_read(
    run: RunDirectory, finished: RunDirectory, tmp_path: Path
) -> None:
    path = run.tokens("topics", "train")
    saved = copy_run(run, tmp_path / "saved").tokens("topics", "train")
    with running(run) as daemon:
        daemon.until_step(3)
        os.truncate(path, 64)
        assert daemon.wait() == errors.DATA
    assert "topics.train.bin became shorter while it was in use" in daemon.stderr()
    stopped = find(run, "stopped")
    assert stopped is not None and stopped["exit_code"] == errors.DATA
    assert "restore it" in stopped["hint"]
    assert "its manifest says" in train(run, code=errors.DATA)
    path.write_bytes(saved.read_bytes())
    train(run)
    assert entries(run) == entries(finished)
