"""andrectl doctor where there is a real unit, a real manager of a user and a real logind."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from andread.rundir.layout import RunDirectory
from tests.systemd.guest import Service, order
from tests.systemd.machine import Machine

pytestmark = pytest.mark.slow


def judged(service: Service, *, code: int = 0) -> dict[str, dict[str, Any]]:
    """Return what the doctor says of the run, by check."""
    done = service.andrectl("doctor", "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return {check["name"]: check for check in orjson.loads(done.stdout)["checks"]}


def test_the_unit_as_installed_is_well(service: Service) -> None:
    service.systemctl("start")
    service.until_step(60)
    service.systemctl("enable")
    try:
        found = judged(service)
    finally:
        service.systemctl("disable")
    for name in ("systemd", "unit", "stop limit", "watchdog", "restarts", "resources", "log-out"):
        assert found[name]["standing"] == "ok", found[name]
    for name in ("rename", "fsync", "append", "record locks", "disk speed"):
        assert found[name]["standing"] == "ok", found[name]
    assert "container" in found["file system"]["detail"], "the machine's disk is an overlay"
    assert "3m 00s" in found["stop limit"]["detail"]
    owners = service.machine.do("find", service.inside, "!", "-user", "andread")
    assert owners == "", "nothing is root's"
    assert service.machine.do("find", service.inside, "-name", ".doctor-*") == ""


def test_limits_that_are_too_short_for_the_run_are_told(obedient: Service) -> None:
    obedient.systemctl("start")
    obedient.until_step(5)
    order(obedient, "sleep", 3)
    obedient.systemctl("stop")  # after that step
    obedient.configure(
        "[Service]\nTimeoutStopSec=2\nWatchdogSec=5\nRestart=always\nLimitFSIZE=100M\n", "short"
    )
    found = judged(obedient)
    for name in ("stop limit", "watchdog", "restarts", "unit"):
        assert found[name]["standing"] == "warning", found[name]
        assert obedient.unit in found[name]["hint"]
    assert "TimeoutStopSec 2.0s is short" in found["stop limit"]["detail"]
    assert "the daemon asks for more" in found["stop limit"]["detail"]
    assert "does not start at boot" in found["unit"]["detail"]

    obedient.configure(
        "[Service]\nType=exec\nNotifyAccess=none\nWatchdogSec=0\nLimitFSIZE=1M\n", "shorter"
    )
    found = judged(obedient, code=78)
    assert "SIGKILL ends it" in found["stop limit"]["detail"]
    assert "LimitFSIZE is 1.05 MB" in found["resources"]["detail"]


def test_a_run_of_another_owner_is_refused(service: Service) -> None:
    service.machine.do("useradd", "--system", "-G", "andread", "mallory")
    service.machine.do("chown", "-R", "mallory", service.inside)
    found = judged(service, code=77)
    assert "runs as andread, and uid" in found["unit"]["detail"]


def test_what_ends_with_a_session_is_told(machine: Machine, template: RunDirectory) -> None:
    machine.do("useradd", "--create-home", "grace")
    machine.do("loginctl", "enable-linger", "grace")
    service = Service(machine, template, "of-grace")
    home, uid = "/home/grace", machine.do("id", "-u", "grace").strip()
    state = f"{home}/.local/state/andread"
    machine.do("sh", "-c", f"mkdir -p {state} && cp -a {service.inside} {state}/mine")
    machine.do("sh", "-c", f"mv {service.inside} {home}/elsewhere; chown -R grace: {home}")
    machine.until(lambda: machine.run("test", "-S", f"/run/user/{uid}/bus").returncode == 0)

    def log_out(run: str) -> tuple[str, str]:
        command = ("env", f"HOME={home}", "andrectl", "--run", run, "doctor", "--json")
        checks = orjson.loads(machine.run(*command, user="grace").stdout)["checks"]
        found = next(check for check in checks if check["name"] == "log-out")
        return found["standing"], found["detail"]

    try:
        assert log_out(f"{state}/mine") == (
            "ok",
            "lingering is on: the user's manager outlives the sessions",
        )
        machine.do("rm", "/var/lib/systemd/linger/grace")
        standing, detail = log_out(f"{state}/mine")
        assert (standing, detail) == (
            "warning",
            "andread@mine.service ends with the last session of grace",
        )
        rule = "[Login]\\nKillUserProcesses=yes\\n"
        place = "/etc/systemd/logind.conf.d"
        machine.do("sh", "-c", f"mkdir -p {place}; printf '{rule}' > {place}/kill.conf")
        machine.do("systemctl", "restart", "systemd-logind")
        standing, detail = log_out(f"{home}/elsewhere")
        assert standing == "warning" and "KillUserProcesses=yes" in detail
    finally:
        machine.run("rm", "-rf", "/etc/systemd/logind.conf.d")
        machine.run("systemctl", "restart", "systemd-logind")
        machine.run("loginctl", "terminate-user", "grace")
        service.discard()
