"""run.toml: every key has a docstring, every mistake an answer."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

from andread.rundir import settings
from andread.rundir.errors import AndreadError, ConfigError, DataError, MissingError
from andread.rundir.run_toml import read_settings, settings_from
from andread.rundir.settings import PRESETS
from tests.rundir.helpers import STRANGERS, put_stranger

MINIMAL = """
[run]
steps = 300
[model]
preset = "andrea-nano"
[[source]]
name = "books"
paths = ["books/*.txt"]
[optimizer]
batch = 48
lr = 3e-3
decay_steps = 300
"""


def document(**changes: Any) -> dict[str, Any]:
    """Return a lawful document with whole tables replaced; None takes one away."""
    base: dict[str, Any] = {
        "run": {"steps": 300},
        "model": {"preset": "andrea-nano"},
        "source": [{"name": "books", "paths": ["b"]}],
        "optimizer": {"batch": 48, "lr": 3e-3, "decay_steps": 300},
    }
    return {key: value for key, value in (base | changes).items() if value is not None}


def test_minimal_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(MINIMAL)
    found = read_settings(path)
    assert found.model.width == 128
    assert found.run.checkpoint_every == found.run.sample_every == 100
    assert found.source_names() == ("books",)


@pytest.mark.parametrize(
    ("preset", "n_params"),
    [("andrea-nano", 671_744), ("andrea-12m", 12_779_520), ("andrea-120m", 119_930_880)],
)
def test_presets_have_the_parameters_that_they_promise(preset: str, n_params: int) -> None:
    assert settings_from(document(model={"preset": preset})).model.n_params == n_params


def test_every_preset_is_tried() -> None:
    assert set(PRESETS) == {"andrea-nano", "andrea-12m", "andrea-120m"}


def test_a_key_overrides_its_preset_and_only_it() -> None:
    model = settings_from(document(model={"preset": "andrea-nano", "layers": 3})).model
    assert (model.layers, model.width) == (3, PRESETS["andrea-nano"]["width"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run": None}, r"the table \[run\] is missing"),
        ({"model": None}, r"the table \[model\] is missing"),
        ({"optimizer": None}, r"the table \[optimizer\] is missing"),
        ({"source": None}, r"the table \[source\] is missing"),
        ({"source": []}, r"the table \[source\] is missing"),
        ({"optimiser": {}}, r"unknown table \[optimiser\] \(did you mean \"optimizer\"\?\)"),
        ({"run": 3}, r"run = 3: expected a table"),
        ({"run": {"steps": 1, "sed": 1}}, r"\[run\]: unknown key \"sed\" \(did you mean \"seed\""),
        ({"run": {"steps": 1, "keep_last": 1}}, "keep_last = 1: must be 2 or more"),
        ({"model": {"preset": "andrea-nanno"}}, r"did you mean \"andrea-nano\""),
        ({"model": {"width": 8, "heads": 2, "layers": 1, "context": 4}}, "vocabulary is missing"),
        ({"model": {"preset": "andrea-nano", "heads": 3}}, "not a multiple of heads"),
        ({"model": {"preset": "andrea-120m", "layers": 400}}, r"at most 2,147,483,647"),
        ({"model": {"preset": "andrea-nano", "activation": "x"}}, "must be one of"),
        ({"source": {"name": "x", "paths": ["a"]}}, "list of tables"),
        ({"source": ["x"]}, "list of tables"),
        ({"source": [{"name": "x", "paths": []}]}, "at least one path"),
        ({"source": [{"name": "a b", "paths": ["a"]}]}, "letters, digits"),
        ({"source": [{"name": "../x", "paths": ["a"]}]}, "letters, digits"),
        ({"source": [{"name": "é", "paths": ["a"]}]}, "letters, digits"),
        ({"source": [{"name": "", "paths": ["a"]}]}, "letters, digits"),
        ({"source": [{"name": "x" * 64, "paths": ["a"]}]}, "at most 63"),
        ({"source": [{"name": "x", "paths": ["a"]}] * 2}, 'two sources are named "x"'),
        ({"source": [{"name": "x", "paths": ["a"], "format": "tokens"}]}, "needs the tokenizer"),
        ({"engine": {"micro_batch": 49}}, "larger than"),
        ({"engine": {"micro_batch": 7}}, "not a multiple of"),
        ({"data": {"validation": 1}}, "from 0 to below 1"),
        ({"faults": {"spike_factor": 1.0}}, "greater than 1"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        settings_from(document(**changes))
    assert caught.value.hint


def test_warm_up_must_end_before_the_decay() -> None:
    optimizer = {"batch": 1, "lr": 1e-3, "decay_steps": 10, "warmup_steps": 10}
    with pytest.raises(ConfigError, match="does not end before"):
        settings_from(document(optimizer=optimizer))


def test_file_that_is_not_there_names_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="does not exist") as caught:
        read_settings(tmp_path / "run.toml")
    assert "andrectl init" in caught.value.hint


@pytest.mark.parametrize(
    "data",
    [
        b"[run\n",
        b"\xff\xfe",
        b"x = " + b"[" * 5000 + b"]" * 5000,
        b"x = " + b"9" * 5000,
        MINIMAL.replace("3e-3", "9" * 400).encode(),
        b"\0",
    ],
    ids=["torn", "not-utf-8", "deep", "long-number", "huge-number", "zero"],
)
def test_damaged_file_is_a_config_error_that_names_it(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"run\.toml"):
        read_settings(path)


@pytest.mark.parametrize("kind", sorted(set(STRANGERS) - {"symlink"}))
def test_no_regular_file_never_hangs(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run.toml"
    put_stranger(path, kind)
    with pytest.raises(AndreadError) as caught:
        read_settings(path)
    assert isinstance(caught.value, DataError | MissingError | ConfigError)


def test_a_link_to_a_shared_file_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(MINIMAL)
    put_stranger(path, "symlink")
    assert read_settings(path).run.steps == 300


def test_trajectory_holds_what_shapes_it_and_nothing_else() -> None:
    base = settings_from(document()).trajectory()
    for free in (
        {"run": {"steps": 999, "keep_last": 9, "checkpoint_every": 7}},
        {"audit": {"prompts": ["x"]}},
        {"engine": {"threads": 3}},
        {"model": dict(PRESETS["andrea-nano"])},  # the preset by its keys
    ):
        assert settings_from(document(**free)).trajectory() == base
    for bound in (
        {"run": {"steps": 300, "seed": 2}},
        {"model": {"preset": "andrea-nano", "layers": 1}},
        {"optimizer": {"batch": 48, "lr": 2e-3, "decay_steps": 300}},
        {"optimizer": {"batch": 48, "lr": 3e-3, "decay_steps": 301}},
        {"engine": {"precision": "fp32"}},
    ):
        changed = settings_from(document(**bound)).trajectory()
        assert len({key for key in base if base[key] != changed[key]}) == 1


def test_every_key_has_a_docstring() -> None:
    for node in ast.parse(inspect.getsource(settings)).body:
        if not isinstance(node, ast.ClassDef) or node.name == "Settings":
            continue
        for item, behind in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(item, ast.AnnAssign):
                told = isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant)
                assert told, f"{node.name}.{ast.unparse(item.target)} has no docstring"


def test_a_seed_of_the_draws_is_part_of_the_trajectory_only_where_it_is_given() -> None:
    plain = settings_from(document(run={"steps": 5, "seed": 3}))
    other = settings_from(document(run={"steps": 5, "seed": 3, "data_seed": 4}))
    assert (plain.run.draw_seed, other.run.draw_seed) == (3, 4)
    assert other.trajectory() == plain.trajectory() | {"run.data_seed": 4}
    assert "run.data_seed" not in plain.trajectory(), "old checkpoints know nothing of it"
