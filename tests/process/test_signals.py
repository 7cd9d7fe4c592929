"""Signals at bad moments: never a lost run, never a torn file, never a silent death."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from andread.rundir import clock, companion, events, lock, presence, requests
from andread.rundir.layout import RunDirectory
from andread.rundir.requests import Request
from tests.process.harness import Daemon, count, entries, find, image, last_step, make_run, running


@pytest.fixture
def slow(tmp_path: Path) -> RunDirectory:
    """A run that takes long enough to be caught in the middle."""
    run = make_run(tmp_path / "run", steps=2000, every=500)
    text = run.settings.read_text()
    run.settings.write_text(text.replace("batch = 8", "batch = 32"))
    return run


def test_sigterm_finishes_the_step_writes_its_checkpoint_and_exits_0(slow: RunDirectory) -> None:
    with running(slow) as daemon:
        daemon.until_step(20)
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == 0
    step = last_step(slow)
    assert image(slow.checkpoint(step))[0] == step
    assert companion.read(slow.companion(step)).reasons == ("stop",)
    stopped = find(slow, "stopped")
    assert stopped is not None and stopped["step"] == step and stopped["exit_code"] == 0


def test_sigusr1_writes_a_checkpoint_and_goes_on(slow: RunDirectory) -> None:
    with running(slow) as daemon:
        daemon.until_step(20)
        daemon.send(signal.SIGUSR1)
        event = daemon.until(lambda: find(slow, "checkpoint", reasons=["signal"]))
        daemon.until_step(event["step"] + 5)
    assert image(slow.checkpoint(event["step"]))[0] == event["step"] >= 20


def test_sigint_and_sighup_are_sigterm(slow: RunDirectory) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        with running(slow) as daemon:
            before = last_step(slow)
            daemon.until_step(before + 5)
            daemon.send(number)
            assert daemon.wait() == 0
        assert slow.checkpoint(last_step(slow)).exists()


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.1, 0.5, 1.0, 2.0])
def test_a_stop_during_start_up_leaves_cleanly(run: RunDirectory, delay: float) -> None:
    """Before Python has installed the handler the kernel ends the process: code -15, no harm."""
    with running(run) as daemon:
        time.sleep(delay)
        daemon.send(signal.SIGTERM)
        assert daemon.wait() in (0, -signal.SIGTERM), daemon.stderr()
    assert "Traceback" not in daemon.stderr()
    assert lock.holder(run.lock) is None


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.05, 0.2, 1.0])
def test_sigusr1_at_any_moment_of_start_up_is_served_and_kills_nothing(
    slow: RunDirectory, delay: float
) -> None:
    with running(slow) as daemon:
        time.sleep(delay)
        daemon.send(signal.SIGUSR1)
        served = daemon.until(
            lambda: [
                event["step"]
                for event in events.read(slow.events)
                if event["event"] == "checkpoint" and "signal" in event["reasons"]
            ]
        )
    assert "signal" in companion.read(slow.companion(served[0])).reasons


def test_a_thousand_sigusr1_in_a_burst(slow: RunDirectory) -> None:
    with running(slow) as daemon:
        daemon.until_step(10)
        for _ in range(1000):
            daemon.send(signal.SIGUSR1)
        daemon.until(lambda: count(slow, "checkpoint") >= 2)
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == 0
    for step in slow.checkpoint_steps():
        assert image(slow.checkpoint(step))[0] == step
    steps = [entry["step"] for entry in entries(slow)]
    assert steps == list(range(1, len(steps) + 1))


def test_sigterm_right_behind_sigusr1_shares_or_follows_its_checkpoint(slow: RunDirectory) -> None:
    with running(slow) as daemon:
        daemon.until_step(10)
        daemon.send(signal.SIGUSR1)
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == 0
    assert slow.checkpoint(last_step(slow)).exists()
    assert not list(slow.path.glob("*.tmp-*"))


MINUTES_OF_PROMPTS = "[audit]\nprompts = [" + '"The", ' * 20_000 + "]"


def test_sigterm_during_an_audit_gives_way_at_once(slow: RunDirectory) -> None:
    text = slow.settings.read_text().replace("sample_every = 500", "sample_every = 20")
    slow.settings.write_text(text.replace("[audit]", MINUTES_OF_PROMPTS))
    with running(slow) as daemon:
        daemon.until_phase("auditing")
        daemon.send(signal.SIGTERM)
        assert daemon.wait(30) == 0
    assert find(slow, "audit") is None
    assert slow.checkpoint(20).exists()
    assert last_step(slow) == 20


def test_an_audit_that_gave_way_is_made_up_at_the_next_start(slow: RunDirectory) -> None:
    test_sigterm_during_an_audit_gives_way_at_once(slow)
    text = slow.settings.read_text()
    slow.settings.write_text(text.replace(MINUTES_OF_PROMPTS, "[audit]"))
    with running(slow) as daemon:
        assert daemon.until_event("audit")["step"] == 20


def test_a_second_interrupt_gives_up_at_once(slow: RunDirectory) -> None:
    text = slow.settings.read_text()
    slow.settings.write_text(text.replace("micro_batch", "").replace("batch = 32", "batch = 4096"))
    with running(slow) as daemon:
        daemon.until_phase("training")
        daemon.send(signal.SIGINT)
        time.sleep(0.3)
        daemon.send(signal.SIGINT)
        assert daemon.wait(60) in (130, 0)


def ask(run: RunDirectory, daemon: Daemon, request_id: str, **wanted: object) -> None:
    told = presence.read(run.lock)
    fields = {
        "id": request_id,
        "boot": told.boot,
        "pid": told.pid,
        "ticks": told.ticks,
        "expires": clock.boot_seconds() + 60,
        **wanted,
    }
    requests.write(run, Request(**fields))  # type: ignore[arg-type]
    daemon.send(signal.SIGUSR1)


def test_a_request_is_acknowledged_once_durable_and_pinned(slow: RunDirectory) -> None:
    with running(slow) as daemon:
        daemon.until_step(10)
        ask(slow, daemon, "mine", pin=True)
        event = daemon.until_event("acknowledged", id="mine")
        daemon.until(lambda: not slow.request("mine").exists())
    assert companion.read(slow.companion(event["step"])).requests == ("mine",)
    assert companion.read(slow.companion(event["step"])).sha256 == event["sha256"]
    assert slow.pin(event["step"]).exists()


def test_a_request_at_the_cadence_waits_for_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1_000_000, every=50)
    with running(run) as daemon:
        daemon.until_step(1)
        ask(run, daemon, "regular", at="cadence")
        event = daemon.until_event("acknowledged", id="regular")
    assert event["step"] % 50 == 0 and event["step"] > 0


def test_a_request_to_another_daemon_is_refused_and_removed(slow: RunDirectory) -> None:
    with running(slow) as daemon:
        daemon.until_step(5)
        ask(slow, daemon, "stranger", pid=1)
        daemon.until_event("refused", id="stranger")
        ask(slow, daemon, "late", expires=0.0)
        daemon.until_event("refused", id="late")
    assert not slow.request("stranger").exists()


def test_a_hold_runs_no_step_while_the_pivot_lock_is_held(slow: RunDirectory) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from andread.rundir.lock import RunLock;"
            "lock = RunLock.acquire(Path(sys.argv[1])); print('held', flush=True);"
            "sys.stdin.read()",
            str(slow.pivot_lock),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    try:
        with running(slow) as daemon:
            daemon.until_step(5)
            ask(slow, daemon, "pivot", hold=True)
            step = daemon.until_event("acknowledged", id="pivot")["step"]
            daemon.until_phase("holding")
            time.sleep(0.5)
            assert last_step(slow) == step
            holder.kill()
            daemon.until_step(step + 3)
            assert find(slow, "released") is not None
    finally:
        holder.kill()
        holder.communicate()


def test_an_ignored_hangup_stays_ignored(slow: RunDirectory) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        daemon = Daemon(slow)
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        daemon.until_step(5)
        daemon.send(signal.SIGHUP)
        daemon.until_step(last_step(slow) + 20)
    finally:
        daemon.kill()
