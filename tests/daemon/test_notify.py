"""What systemd is told, heard at the other end of its socket."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from andread.daemon import notify
from andread.daemon.notify import Notifier

pytest.importorskip("systemd.daemon", reason="systemd-python is not installed")


class Ear:
    """The manager's end: `heard` returns all lines so far."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self._lines: list[str] = []

    def heard(self) -> list[str]:
        while True:
            try:
                self._lines += self._socket.recv(65536).decode().splitlines()
            except BlockingIOError:
                return self._lines

    def until(self, condition: Callable[[list[str]], bool]) -> list[str]:
        deadline = time.monotonic() + 10
        while not condition(self.heard()):
            assert time.monotonic() < deadline, self._lines
            time.sleep(0.01)
        return self._lines

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def ear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ear]:
    found = Ear(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "5000000")
    monkeypatch.setattr(notify, "_QUIET", 0.0)
    monkeypatch.setattr(notify, "_EVERY", 0.05)
    yield found
    found.close()


def test_nobody_listens_and_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert notify.notify("READY=1") is False
    manager = Notifier()
    manager.loading()
    manager.ready()
    manager.stepped(1.0)
    manager.stopping()


def test_loading_asks_for_time_until_it_is_ready(ear: Ear) -> None:
    manager = Notifier()
    manager.loading()
    ear.until(lambda lines: lines.count("EXTEND_TIMEOUT_USEC=30000000") >= 3)
    manager.ready()
    ear.until(lambda lines: "READY=1" in lines)
    time.sleep(0.2)
    after = ear.heard()[ear.heard().index("READY=1") :]
    assert len(after) <= 2, "at most one that was being sent"


def test_the_watchdog_follows_the_slowest_step_but_not_below_the_unit_s(ear: Ear) -> None:
    manager = Notifier()
    manager.stepped(0.1)
    assert ear.heard() == ["WATCHDOG=1"]
    manager.stepped(60.0)
    assert "WATCHDOG_USEC=600000000" in ear.heard()
    for _ in range(50):
        manager.stepped(0.1)
        ear.heard()  # a full queue would make the sender wait
    bounds = [line for line in ear.heard() if line.startswith("WATCHDOG_USEC")]
    assert bounds == ["WATCHDOG_USEC=600000000", "WATCHDOG_USEC=5000000"]


def test_no_watchdog_no_beats(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_USEC")
    manager = Notifier()
    manager.stepped(60.0)
    manager.beat()
    assert ear.heard() == []


def test_a_stop_asks_for_twice_step_and_write_and_no_more(ear: Ear) -> None:
    manager = Notifier()
    assert manager.stop_limit() == notify.UNMEASURED_LIMIT
    manager.stepped(0.1)
    manager.wrote(0.15)
    assert manager.stop_limit() == pytest.approx(0.5)
    manager.stopping()
    manager.stopping()
    ear.until(lambda lines: sum(x.startswith("EXTEND") for x in lines) >= 3)
    time.sleep(0.7)
    count = len(ear.heard())
    time.sleep(0.2)
    assert len(ear.heard()) == count, "it ends with the limit"
    assert ear.heard().count("STOPPING=1") == 1
    asked = [int(x.partition("=")[2]) for x in ear.heard() if x.startswith("EXTEND")]
    assert max(asked) <= 500000 and asked == sorted(asked, reverse=True)


def test_a_stop_that_gets_on_buys_time_beyond_its_limit(ear: Ear) -> None:
    manager = Notifier()
    manager.stepped(0.01)
    manager.beat()
    assert not any(line.startswith("EXTEND") for line in ear.heard()), "nobody stops yet"
    manager.stopping()
    time.sleep(0.2)  # the limit, 0.02 seconds, is over
    before = len(ear.heard())
    manager.beat()
    assert ear.heard()[before:] == ["WATCHDOG=1", "EXTEND_TIMEOUT_USEC=30000000"]


def test_a_status_is_one_line_and_not_told_too_often(
    ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "_QUIET", 60.0)
    manager = Notifier()
    for step in range(100):
        manager.status(f"step {step}", hurry=False)
    manager.status("a fault\nin two lines")
    assert ear.heard() == ["STATUS=step 0", "STATUS=a fault in two lines"]
