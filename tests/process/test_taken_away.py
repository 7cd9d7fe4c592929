"""Files taken away from under a running daemon, and companions that were edited."""

import signal
from pathlib import Path

import orjson
import pytest

from andread.rundir import errors, lock
from andread.rundir.layout import RunDirectory
from tests.process.harness import copy_run, entries, find, last_step, make_run, running, train


@pytest.fixture
def endless(tmp_path: Path) -> RunDirectory:
    return make_run(tmp_path / "run", steps=1_000_000, every=20)


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_history_that_is_lost_in_use_is_put_back_whole(
    endless: RunDirectory, tmp_path: Path, how: str
) -> None:
    with running(endless) as daemon:
        daemon.until_step(25)
        if how == "replaced":
            (tmp_path / "other").write_text("[]\n")
            (tmp_path / "other").rename(endless.history)
        else:
            endless.history.unlink()
        daemon.until_event("fault", what="history")
        daemon.until_step(60)
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == 0
    steps = [entry["step"] for entry in entries(endless)]
    assert steps == list(range(1, len(steps) + 1))
    aside = endless.history.with_name(".loss.json.rejected")
    assert aside.exists() == (how == "replaced")
    with running(endless) as daemon:
        daemon.until_step(steps[-1] + 1)


def test_a_lock_that_is_removed_is_put_back(endless: RunDirectory) -> None:
    with running(endless) as daemon:
        daemon.until_step(5)
        endless.lock.unlink()
        daemon.until_event("fault", what="lock")
        assert lock.holder(endless.lock) == daemon.process.pid
        daemon.until_step(last_step(endless) + 5)


def test_a_daemon_that_lost_its_run_writes_nothing_more(endless: RunDirectory) -> None:
    """The lock is taken away in the middle of a step, and another process takes the run."""
    with running(endless) as daemon:
        daemon.until_step(5)
        daemon.send(signal.SIGSTOP)
        endless.lock.unlink()
        with lock.RunLock.acquire(endless.lock):
            before = endless.history.read_bytes()
            daemon.send(signal.SIGCONT)
            assert daemon.wait() == errors.TEMPORARY
            assert len(endless.history.read_bytes()) - len(before) < 200  # a record in flight
    steps = [entry["step"] for entry in entries(endless)]
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("counters", {"skipped": "abc"}),
        ("environment", {"threads": "q"}),
        ("history_length", 0),
        ("curriculum", {"positions": {"topics": -5, "license": 1e300}}),
    ],
)
def test_an_edited_companion_costs_its_checkpoint(
    finished: RunDirectory, tmp_path: Path, key: str, value: object
) -> None:
    run = copy_run(finished, tmp_path / "run")
    path = run.companion(60)
    content = orjson.loads(path.read_bytes())
    path.write_bytes(orjson.dumps({**content, key: value}))
    train(run)
    rejected = find(run, "rejected", step=60)
    assert rejected is not None and "checksum" in rejected["reason"]
    assert find(run, "replay", verdict="exact") is not None


def test_a_number_beyond_all_bounds_is_a_setting_that_is_wrong(run: RunDirectory) -> None:
    text = run.settings.read_text()
    for number in ("99999999999999999999999", "3000000000"):
        run.settings.write_text(text.replace("steps = 60", f"steps = {number}"))
        assert "Traceback" not in train(run, code=errors.CONFIG)
