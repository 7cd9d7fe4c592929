import os
import signal
import subprocess
import sys

import orjson
import pytest
from click.testing import CliRunner
from preparing import make_run, write_texts

from andrectl.cli import main
from andrectl.commands.prepare import print_table

BOOKS = {"name": "books", "paths": ["books"]}


@pytest.fixture
def run(tmp_path):
    write_texts(tmp_path / "books", 20)
    (tmp_path / "books/bad").write_bytes(b"\xff")
    return make_run(tmp_path, [BOOKS])


def test_json_has_a_schema_and_every_source(run):
    result = CliRunner().invoke(main, ["--run", str(run.path), "prepare", "--json"])
    found = orjson.loads(result.stdout)
    assert found["schema"] == 1
    (row,) = found["sources"]
    assert (row["source"], row["documents"]) == ("books", 20)
    assert row["train_windows"] == (row["train_tokens"] - 1) // 16
    assert 0 < row["unique_tokens"] <= row["train_tokens"]
    assert row["skipped"]["not UTF-8"] == {"count": 1, "names": ["books/bad"]}


def test_the_table_goes_to_stdout_and_narration_to_stderr(run):
    result = CliRunner().invoke(main, ["--run", str(run.path), "prepare"])
    assert "unique" in result.stdout
    assert "100%" in result.stdout  # of random words, all are unique
    assert "books/bad" in result.stdout
    assert "training the tokenizer" in result.stderr
    assert "andrectl start" in result.stderr


def test_the_table_of_the_example_fits_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    row = {"source": "docstrings", "documents": 1574, "train_tokens": 3_047_134}
    row |= {"unique_tokens": 2_552_000, "validation_tokens": 220_885, "skipped": {}}
    print_table([row | {"train_windows": 23_805, "validation_windows": 1_725}])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "docstrings" in line)
    assert "3,047,134" in line and "84%" in line and "23,805 + 1,725" in line


def test_importing_the_command_loads_nothing_heavy():
    script = (
        "import sys; import andrectl.commands.prepare; "
        "print({'torch', 'numpy', 'tokenizers', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_cleanly_and_the_work_can_be_taken_up(run, number):
    write_texts(run.path / "books", 100, 3000)
    process = subprocess.Popen(
        [sys.executable, "-m", "andrectl", "--run", os.fspath(run.path), "prepare"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline()  # it has begun
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "run `andrectl prepare` again" in told
    result = CliRunner().invoke(main, ["--run", str(run.path), "prepare", "--json"])
    assert orjson.loads(result.stdout)["sources"][0]["documents"] == 100
