from __future__ import annotations

from pathlib import Path

import pytest

from andread.rundir.errors import MissingError
from andrectl.selection import VARIABLE, find, state_directory


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("given", "named", "here", "state/only"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.toml").touch()
    (tmp_path / "elsewhere").mkdir()
    return tmp_path


def test_the_order_in_which_a_run_is_looked_for(runs: Path) -> None:
    given, environment = str(runs / "given"), {VARIABLE: str(runs / "named")}
    here, elsewhere, state = runs / "here", runs / "elsewhere", runs / "state"
    assert find(given, environment, here, state).path.name == "given"
    assert find(None, environment, here, state).path.name == "named"
    assert find(None, {}, here, state).path.name == "here"
    assert find(None, {}, elsewhere, state).path.name == "only"


def test_no_run_lists_what_was_tried(runs: Path) -> None:
    with pytest.raises(MissingError) as caught:
        find(None, {}, runs / "elsewhere", runs / "nowhere")
    for tried in ("--run", VARIABLE, "elsewhere", "nowhere holds no run"):
        assert tried in caught.value.message


def test_several_runs_are_named_not_guessed(runs: Path) -> None:
    (runs / "state/other").mkdir()
    (runs / "state/other/run.toml").touch()
    with pytest.raises(MissingError, match=r"2 runs \(only, other\)"):
        find(None, {}, runs / "elsewhere", runs / "state")


@pytest.mark.parametrize(("name", "why"), [("elsewhere", "no run.toml"), ("x", "not a directory")])
def test_a_wrong_run_is_refused_however_it_was_named(runs: Path, name: str, why: str) -> None:
    with pytest.raises(MissingError, match=why):
        find(str(runs / name), {}, runs / "here", runs / "state")
    with pytest.raises(MissingError, match=why):
        find(None, {VARIABLE: str(runs / name)}, runs / "here", runs / "state")


def test_the_state_directory_of_root_and_of_users() -> None:
    assert state_directory({}, root=True) == Path("/var/lib/andread")
    assert state_directory({"XDG_STATE_HOME": "/s"}, root=False) == Path("/s/andread")
    home = Path("~/.local/state/andread").expanduser()
    assert state_directory({}, root=False) == home
    assert state_directory({"XDG_STATE_HOME": "relative"}, root=False) == home
