"""What `make install` leaves on a machine, as its systemd and its users see it."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import orjson
import pytest

from andread.rundir.layout import RunDirectory
from tests.process.harness import count, find
from tests.systemd.guest import STATE, Service
from tests.systemd.machine import TREE, Machine

pytestmark = pytest.mark.slow


def test_the_installed_units_are_found_and_safe(machine: Machine) -> None:
    for unit in ("andread.service", "andread@default.service"):
        done = machine.run("systemd-analyze", "verify", "--man=no", unit)
        assert (done.returncode, done.stderr) == (0, ""), unit
        said = machine.do("systemd-analyze", "security", "--no-pager", unit)
        found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
        assert found is not None and float(found[1]) <= 1.5, said
    assert machine.do("stat", "-c", "%U:%G %a", STATE).strip() == "andread:andread 750"


def test_the_run_default_has_a_short_name(machine: Machine, template: RunDirectory) -> None:
    service = Service(machine, template, "default")
    service.rename_unit("andread.service")
    try:
        done = service.andrectl("start")
        assert done.returncode == 0, done.stderr
        assert machine.show("andread.service", "ActiveState") == "active"
        machine.do("systemctl", "start", "andread@default.service")
        assert machine.show("andread@default.service", "ActiveState") == "active"
        assert service.states() == ("inactive", "dead", "success"), "one run, one daemon"
        assert count(service.run, "started") == 2
    finally:
        machine.run("systemctl", "stop", "andread@default.service")
        service.discard()


def test_a_user_without_root_has_units_too(machine: Machine, template: RunDirectory) -> None:
    machine.do("useradd", "--create-home", "ada")
    machine.do("loginctl", "enable-linger", "ada")
    state = "/home/ada/.local/state/andread"
    service = Service(machine, template, "of-ada")
    machine.do("sh", "-c", f"mkdir -p {state} && mv {service.inside} {state}/mine")
    machine.do("chown", "-R", "ada:ada", "/home/ada")
    uid = machine.do("id", "-u", "ada").strip()
    run = RunDirectory(machine.host(f"{state}/mine"))
    machine.until(lambda: machine.run("test", "-S", f"/run/user/{uid}/bus").returncode == 0)
    andrectl = ("env", "HOME=/home/ada", "andrectl", "--run", f"{state}/mine")
    try:
        done = machine.run(*andrectl, "start", user="ada")
        assert done.returncode == 0, done.stderr
        assert "enable-linger" not in done.stderr
        view = orjson.loads(machine.do(*andrectl, "status", "--json", user="ada"))
        assert view["service"]["unit"] == "andread@mine.service"
        assert (view["service"]["manager"], view["service"]["active"]) == ("user", "active")
        done = machine.run(*andrectl, "stop", user="ada")
        assert done.returncode == 0, done.stderr
        stopped = find(run, "stopped")
        assert stopped is not None and stopped["exit_code"] == 0
    finally:
        machine.run("loginctl", "terminate-user", "ada")


def test_what_is_uninstalled_leaves_nothing_behind() -> None:
    with tempfile.TemporaryDirectory() as place:
        for target in ("install-files", "uninstall"):
            words = ["make", "-s", target, f"DESTDIR={place}", f"PAGES_WITH={sys.executable}"]
            subprocess.run(words, check=True, cwd=TREE, capture_output=True)
        assert [path for path in Path(place).rglob("*") if not path.is_dir()] == []
