"""Which unit a run belongs to, told by a systemctl of ours; tests/systemd has the real one."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from andread.rundir.errors import AccessError
from andread.rundir.layout import RunDirectory
from andread.rundir.lock import RunLock
from andrectl import selection, systemd
from andrectl.systemd import Unit, unit_of

_SYSTEMCTL = """\
#!/bin/sh
case "$*" in
    *absent*) echo LoadState=not-found ;;
    *show*) echo LoadState=loaded; echo NRestarts=3 ;;
    *) echo Interactive authentication required. >&2; exit 1 ;;
esac
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's state directory, on a machine that systemd runs and with our units installed."""
    place = tmp_path / "state"
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin/systemctl"
    script.write_text(_SYSTEMCTL)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(systemd, "_RUNNING", tmp_path)
    monkeypatch.setattr(
        selection, "state_directory", lambda _, root: place if root else tmp_path / "mine"
    )
    return place


def run_at(path: Path, supervisor: dict[str, object] | None = None) -> RunDirectory:
    path.mkdir(parents=True)
    run = RunDirectory(path)
    if supervisor is not None:
        with RunLock.acquire(run.lock) as lock:
            lock.describe({"supervisor": supervisor})
    return run


def test_a_run_belongs_to_the_unit_of_its_place(state: Path, tmp_path: Path) -> None:
    assert unit_of(run_at(state / "web")) == Unit("andread@web.service", "system")
    assert unit_of(run_at(state / "default")) == Unit("andread.service", "system")
    assert unit_of(run_at(tmp_path / "mine/web")) == Unit("andread@web.service", "user")


def test_elsewhere_it_belongs_to_nobody(state: Path, tmp_path: Path) -> None:
    assert unit_of(run_at(tmp_path / "elsewhere/web")) is None
    assert unit_of(run_at(state / "absent")) is None
    assert unit_of(run_at(state / "no unit's name")) is None
    assert unit_of(run_at(tmp_path / "elsewhere/by-hand", {"kind": "detached"})) is None


def test_a_stopped_run_belongs_to_the_unit_that_it_last_ran_under(
    state: Path, tmp_path: Path
) -> None:
    told = {"kind": "systemd", "unit": "mine.service", "manager": "system"}
    assert unit_of(run_at(tmp_path / "other/a", told)) == Unit("mine.service", "system")
    told["unit"] = "absent.service"
    assert unit_of(run_at(tmp_path / "other/b", told)) is None


def test_without_systemd_no_run_belongs_to_it(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_at(state / "web")
    monkeypatch.setattr(systemd, "_RUNNING", tmp_path / "not")
    assert unit_of(run) is None


def test_a_user_s_unit_ends_with_the_session_unless_lingering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "_LINGERING", tmp_path)
    assert Unit("andread.service", "user").mortal()
    (tmp_path / pwd.getpwuid(os.geteuid()).pw_name).touch()
    assert not Unit("andread.service", "user").mortal()
    assert not Unit("andread.service", "system").mortal()


def test_what_systemctl_refuses_is_told_with_a_way_out(state: Path) -> None:
    unit = Unit("andread@web.service", "system")
    assert unit.table()["restarts"] == 3
    with pytest.raises(AccessError, match=r"andread@web\.service") as caught:
        unit.ask("stop", unit.name)
    assert "sudo" in caught.value.hint
