"""What holds for every command: help, exit codes, laziness, the reference in docs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import click
import pytest

from andread import __version__
from andread.rundir.layout import RunDirectory
from andrectl import reference
from andrectl.cli import COMMANDS, main

ROOT = Path(__file__).parents[2]
BUILT = [
    name
    for name in COMMANDS
    if any(importlib.util.find_spec(f"andrectl.commands.{module}") for module in (name, f"{name}_"))
]


def command_of(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", BUILT)
def test_every_command_and_option_has_help(name: str) -> None:
    command = command_of(name)
    assert command.help is not None
    assert command.help.splitlines()[0] == COMMANDS[name]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts}"


@pytest.mark.parametrize("name", [name for name in BUILT if name != "init"])
def test_every_command_takes_the_run(name: str) -> None:
    names = {option for parameter in command_of(name).params for option in parameter.opts}
    assert "--run" in names


def test_the_reference_is_up_to_date() -> None:
    written = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    assert written == reference.markdown(), "write it anew: python -m andrectl.reference"


def test_the_group_lists_all_without_importing_any(python) -> None:
    code = (
        "import sys; from andrectl.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith('andrectl.commands')])"
    )
    out = python("-c", code).stdout
    assert out.splitlines()[-1] == "[]"
    for name, text in COMMANDS.items():
        assert f" {name} {text}" in " ".join(out.split())


def test_version(andrectl) -> None:
    assert __version__ in andrectl("--version").stdout


@pytest.mark.parametrize(
    "line", [("nonsense",), ("--nonsense",), ("status", "--nonsense"), ("start", "--device", "tpu")]
)
def test_a_wrong_command_line_is_usage(andrectl, run: RunDirectory, line: tuple[str, ...]) -> None:
    result = andrectl("--run", run.path, *line)
    assert result.exit_code == 64
    assert not result.stdout and result.stderr


def test_what_nobody_thought_of_is_one_line(andrectl, trained, monkeypatch) -> None:
    def fail(_: object) -> None:
        raise KeyError("nobody\nthought of it")

    monkeypatch.setattr("andrectl.inventory.entries", fail)
    result = andrectl("--run", trained.path, "checkpoints")
    assert result.exit_code == 70
    assert "an internal error: KeyError" in result.stderr and "report it" in result.stderr
    assert len(result.stderr.splitlines()) == 2
    monkeypatch.setenv("ANDRECTL_DEBUG", "1")
    assert "Traceback" in andrectl("--run", trained.path, "checkpoints").stderr


def test_no_run_is_told_with_a_hint(andrectl) -> None:
    result = andrectl("checkpoints")
    assert result.exit_code == 66
    assert "which run?" in result.stderr and "hint: " in result.stderr


def test_the_run_is_taken_before_and_after_the_name(andrectl, trained: RunDirectory) -> None:
    before = andrectl("--run", trained.path, "checkpoints", "--json")
    after = andrectl("checkpoints", "--json", "--run", trained.path)
    assert before.exit_code == after.exit_code == 0
    assert json.loads(before.stdout) == json.loads(after.stdout)
    assert andrectl("--run", "/nowhere", "checkpoints", "--run", trained.path).exit_code == 0


def test_a_run_named_by_the_environment(andrectl, trained, monkeypatch) -> None:
    monkeypatch.setenv("ANDREAD_RUN", str(trained.path))
    assert andrectl("checkpoints").exit_code == 0


def test_no_colour_where_none_is_wanted(run: RunDirectory, monkeypatch, andrectl) -> None:
    from click.testing import CliRunner

    line = ["--run", str(run.path), "status"]
    assert "\x1b[" in CliRunner().invoke(main, line, color=True).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in CliRunner().invoke(main, line, color=True).stdout
