from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from andread.rundir.policy import read_policies
from andread.rundir.run_toml import read_settings, settings_from
from andread.rundir.settings import PRESETS, OptimizerSettings, RunSettings, Settings
from andrectl.cost import cost
from andrectl.template import RECIPES, run_toml


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "web.txt"
    path.write_text("some text\n")
    return path


@pytest.mark.parametrize("preset", PRESETS)
def test_what_init_writes_is_read_back(andrectl, tmp_path: Path, text: Path, preset: str) -> None:
    directory = tmp_path / "deep/new"
    result = andrectl("init", directory, "--preset", preset, "--source", f"web={text}")
    assert result.exit_code == 0, result.stderr
    settings = read_settings(directory / "run.toml")
    recipe = RECIPES[preset]
    assert settings.model.preset == preset
    assert settings.source_names() == ("web",)
    assert settings.sources[0].paths == (str(text),)
    assert (settings.run.steps, settings.optimizer.decay_steps) == (recipe.steps, recipe.steps)
    assert (settings.optimizer.batch, settings.optimizer.lr) == (recipe.batch, recipe.lr)
    (policy,) = read_policies(directory / "policy.json")
    assert (policy.begins_after, policy.algorithm) == (0, "ucb")
    assert f"{settings.model.n_params:,}" in result.stdout
    assert f"--run {directory}" in result.stderr


def test_every_key_is_written_and_has_its_default() -> None:
    sources = [{"name": "a", "paths": ["a"], "format": "text"}]
    written = tomllib.loads(run_toml("andrea-nano", RECIPES["andrea-nano"], 1, sources))
    for field in dataclasses.fields(Settings):
        if field.name in ("model", "sources"):
            continue
        table = field.default if field.default is not dataclasses.MISSING else None
        keys = {
            "run": RunSettings,
            "optimizer": OptimizerSettings,
        }.get(field.name, type(table))
        given = (key.name for key in dataclasses.fields(keys) if key.default is not None)
        assert set(written[field.name]) == set(given)
        if table is not None:
            assert getattr(settings_from(written), field.name) == table


def test_options_shape_the_run(andrectl, tmp_path: Path, text: Path) -> None:
    rows = tmp_path / "rows.data"
    rows.write_text('{"body": "x"}\n')
    line = ["--source", f"web={text},{tmp_path}/*.txt", "--source", f"rows={rows}"]
    line += ["--format", "rows=jsonl", "--text-key", "rows=body", "--seed", 9]
    line += ["--steps", 40, "--batch", 6, "--lr", 0.001]
    assert andrectl("init", tmp_path / "new", *line).exit_code == 0
    settings = read_settings(tmp_path / "new/run.toml")
    web, second = settings.sources
    assert len(web.paths) == 2
    assert (second.format, second.text_key) == ("jsonl", "body")
    assert (settings.run.seed, settings.run.steps) == (9, 40)
    assert (settings.optimizer.batch, settings.optimizer.lr) == (6, 0.001)
    assert settings.optimizer.warmup_steps < 40


def test_init_never_overwrites(andrectl, trained, text: Path) -> None:
    before = trained.settings.read_bytes()
    result = andrectl("init", trained.path, "--source", f"web={text}")
    assert result.exit_code == 73
    assert trained.settings.read_bytes() == before
    trained.settings.unlink()
    result = andrectl("init", trained.path, "--source", f"web={text}")
    assert result.exit_code == 73
    assert "loss history" in result.stderr


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ([], 64),
        (["--example", "--dry-run", "--steps", "9" * 23], 64),
        (["--example", "--dry-run", "--batch", "9" * 23], 64),
        (["--example", "--dry-run", "--seed", "9" * 23], 64),
        (["--source", "web"], 64),
        (["--source", "web=/nowhere/at/all"], 66),
        (["--source", "we b=HERE"], 78),
        (["--source", "web=HERE", "--source", "web=HERE"], 78),
        (["--source", "web=HERE", "--format", "web=csv"], 78),
        (["--source", "web=HERE", "--format", "books=jsonl"], 64),
        (["--source", "web=HERE", "--format", "web=tokens"], 78),
        (["--source", "web=HERE", "--preset", "andrea-7b"], 64),
    ],
)
def test_what_is_wrong_writes_nothing(andrectl, tmp_path, text, line, code) -> None:
    line = [word.replace("HERE", str(text)) for word in line]
    result = andrectl("init", tmp_path / "new", *line)
    assert result.exit_code == code, result.stderr
    assert result.stderr and not (tmp_path / "new").exists()


def test_a_dry_run_prints_and_writes_nothing(andrectl, tmp_path: Path, text: Path) -> None:
    result = andrectl("init", tmp_path / "new", "--source", f"web={text}", "--dry-run")
    assert settings_from(tomllib.loads(result.stdout)).source_names() == ("web",)
    assert not (tmp_path / "new").exists()


def test_the_example_brings_its_sources(andrectl, tmp_path: Path) -> None:
    result = andrectl("init", tmp_path / "new", "--example", "--dry-run")
    assert result.exit_code == 0 and not (tmp_path / "new").exists()
    assert andrectl("init", tmp_path / "new", "--example").exit_code == 0
    assert (tmp_path / "new/run.toml").read_text() == result.stdout
    for source in read_settings(tmp_path / "new/run.toml").sources:
        assert all(list((tmp_path / "new").glob(path)) for path in source.paths)


def test_the_cost_of_the_largest_preset() -> None:
    toml = run_toml("andrea-120m", RECIPES["andrea-120m"], 1, [{"name": "a", "paths": ["a"]}])
    takes = cost(settings_from(tomllib.loads(toml)))
    assert takes.checkpoint_bytes == 1_439_170_568
    # the multiples of 20,000 from 0 to 200,000, two more of the last three, one being written
    assert takes.checkpoints == 11 + 2 + 1
    assert takes.tokens_per_step == 16 * 1024
    assert takes.tokens == 3_276_800_000


def test_a_first_policy(andrectl, tmp_path: Path, text: Path) -> None:
    caps = tmp_path / "caps.toml"
    caps.write_text("web = 0.7\n")
    line = ["--source", f"web={text}", "--source", f"books={text}", "--policy", "fixed"]
    line += ["--weights", "web=2,books=1", "--caps", caps, "--floors", "books=0.1"]
    line += ["--floors", "web=0.2, books=0.3"]
    result = andrectl("init", tmp_path / "new", *line)
    assert result.exit_code == 0, result.stderr
    (policy,) = read_policies(tmp_path / "new/policy.json")
    assert (policy.algorithm, policy.weights) == ("fixed", {"web": 2, "books": 1})
    assert (policy.caps, policy.floors) == ({"web": 0.7}, {"books": 0.3, "web": 0.2})


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (["--policy", "best"], 64, "best"),
        (["--policy", "fixed"], 78, "needs a weight for web"),
        (["--weights", "web=1"], 78, "would ignore"),
        (["--caps", "web=0.5"], 78, "caps sum to 0.5"),
        (["--floors", "wep=0.5"], 78, 'did you mean "web"'),
        (["--caps", "web=much"], 64, "SOURCE=SHARE"),
        (["--caps", "/nowhere/caps.toml"], 66, "/nowhere/caps.toml"),
    ],
)
def test_a_first_policy_that_cannot_be(andrectl, tmp_path, text, line, code, said) -> None:
    result = andrectl("init", tmp_path / "new", "--source", f"web={text}", *line)
    assert result.exit_code == code and said in result.stderr, result.stderr
    assert not (tmp_path / "new").exists()
