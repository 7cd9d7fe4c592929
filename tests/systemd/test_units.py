"""The units by themselves: what systemd says of them without running them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from andread.rundir import errors

UNITS = Path(__file__).parents[2] / "units"
SYSTEM = sorted(UNITS.glob("*.service"))
USER = sorted((UNITS / "user").glob("*.service"))
EXPOSURE = 1.5

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="NOT TESTED: the units, for there is no systemd-analyze here",
)


def settings(path: Path) -> list[str]:
    """Return the settings of a unit, without comments."""
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def test_there_are_units_for_the_system_and_for_users() -> None:
    names = ["andread.service", "andread@.service"]
    assert [path.name for path in SYSTEM] == [path.name for path in USER] == names


@pytest.mark.parametrize(
    "path", [*SYSTEM, *USER], ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_systemd_has_nothing_to_say_against_a_unit(path: Path, tmp_path: Path) -> None:
    user = ["--user"] if path in USER else []
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *user, str(path)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", SYSTEM, ids=lambda path: path.name)
def test_the_exposure_of_a_system_unit_is_small(path: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None and float(found[1]) <= EXPOSURE, done.stdout


@pytest.mark.parametrize("place", [UNITS, UNITS / "user"], ids=["system", "user"])
def test_the_short_unit_is_the_template_for_the_run_default(place: Path) -> None:
    template = [line.replace("%i", "default") for line in settings(place / "andread@.service")]
    short = settings(place / "andread.service")
    other = ["Conflicts=andread@default.service", "After=andread@default.service"]
    instance = "DefaultInstance=default"
    assert set(other) <= set(short) and instance in template
    assert [x for x in short if x not in other] == [x for x in template if x != instance]


@pytest.mark.parametrize(
    "path", [*SYSTEM, *USER], ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_a_unit_is_not_started_again_after_what_no_restart_mends(path: Path) -> None:
    [line] = [x for x in settings(path) if x.startswith("RestartPreventExitStatus=")]
    codes = {int(code) for code in line.partition("=")[2].split()}
    worth_another_try = {errors.SOFTWARE, errors.OS_FAULT, errors.IO, errors.TEMPORARY}
    of_the_tool = {errors.OK, errors.STOPPED, errors.UNKNOWN}
    assert codes == errors.EXIT_CODES.keys() - worth_another_try - of_the_tool


def test_every_exception_from_the_hardening_has_its_reason() -> None:
    text = (UNITS / "andread@.service").read_text()
    for name in ("PrivateDevices", "MemoryDenyWriteExecute", "ProcSubset=pid"):
        assert re.search(rf"^#   {name}\s+\w", text, re.MULTILINE), name
        assert not re.search(rf"^{name}", text, re.MULTILINE), name
