"""Which settings a policy may override, and what they must be."""

from __future__ import annotations

import dataclasses

import pytest

from andread.rundir.errors import ConfigError
from andread.rundir.overrides import OVERRIDABLE, settings_under
from andread.rundir.policy import Policy
from andread.rundir.run_toml import settings_from
from andread.rundir.settings import EngineSettings, Settings

DOCUMENT = {
    "run": {"steps": 100},
    "model": {"preset": "andrea-nano"},
    "optimizer": {"batch": 8, "lr": 1e-3, "decay_steps": 100, "warmup_steps": 10},
    "source": [{"name": "books", "paths": ["books.txt"]}],
}


def settings(micro_batch: int = 0) -> Settings:
    made = settings_from(DOCUMENT)
    return dataclasses.replace(made, engine=EngineSettings(micro_batch=micro_batch))


def under(overrides: dict[str, object], micro_batch: int = 0) -> Settings:
    return settings_under(settings(micro_batch), Policy(overrides=overrides))


def test_without_overrides_the_settings_are_those_of_run_toml() -> None:
    assert under({}) == settings()


def test_what_is_given_changes_and_the_rest_stays() -> None:
    changed = under({"optimizer.lr": 5e-4, "optimizer.batch": 16})
    assert (changed.optimizer.lr, changed.optimizer.batch) == (5e-4, 16)
    assert dataclasses.replace(changed, optimizer=settings().optimizer) == settings()
    assert changed.optimizer.warmup_steps == 10


def test_every_key_of_the_list_is_one_of_run_toml_and_changes_the_trajectory() -> None:
    assert set(OVERRIDABLE) <= set(settings().trajectory())


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("model.width", 64, "model.width may not change"),
        ("run.seed", 2, "run.seed may not change"),
        ("optimizer.beta1", 0.8, "optimizer.beta1 may not change"),
        ("optimizer.lrr", 0.1, 'did you mean "optimizer.lr"'),
        ("optimizer.lr", "high", "expected a number"),
        ("optimizer.lr", 0, "greater than 0"),
        ("optimizer.batch", 2.5, "expected a whole number"),
        ("optimizer.warmup_steps", 100, "does not end before"),
    ],
)
def test_what_is_refused(key: str, value: object, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        under({key: value})


def test_a_batch_must_suit_the_micro_batch_of_run_toml() -> None:
    assert under({"optimizer.batch": 12}, micro_batch=4).optimizer.batch == 12
    with pytest.raises(ConfigError, match="multiple"):
        under({"optimizer.batch": 10}, micro_batch=4)
