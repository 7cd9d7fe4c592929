"""Strict tables: an unknown key names the nearest one, a wrong type what was expected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from andread.rundir.errors import ConfigError
from andread.rundir.tables import (
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    at_least,
    nearest,
    one_of,
    read_table,
    setting,
)


@dataclass(frozen=True)
class Sample:
    steps: int = setting(check=POSITIVE)
    rate: float = setting(0.5, check=FRACTION)
    name: str = setting("a", check=one_of("a", "b"))
    on: bool = setting(False)
    seed: int = setting(0, check=NOT_NEGATIVE)
    keep: int = setting(3, check=at_least(2))
    paths: tuple[str, ...] = setting(())
    loss: float | None = setting(None, check=POSITIVE)
    caps: dict[str, float] = field(default_factory=dict)
    free: dict[str, Any] = field(default_factory=dict)


def test_defaults_and_conversions() -> None:
    found = read_table(
        Sample,
        {"steps": 3, "rate": 1, "paths": ["x"], "caps": {"code": 1}, "free": {"a": [1, {}]}},
        "[t]",
    )
    assert found == Sample(3, 1.0, paths=("x",), caps={"code": 1.0}, free={"a": [1, {}]})
    assert type(found.rate) is float
    assert type(found.caps["code"]) is float
    assert read_table(Sample, {"steps": 1, "loss": None}, "[t]").loss is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, r'\[t\]: the key "steps" is missing'),
        ({"steps": 1, "sede": 1}, r'unknown key "sede" \(did you mean "seed"\?\)'),
        ({"steps": 1, "zzzzzzz": 1}, r'unknown key "zzzzzzz"$'),
        ({"steps": "1"}, r"\[t\] steps = '1': expected a whole number"),
        ({"steps": 1.0}, "expected a whole number"),
        ({"steps": True}, "expected a whole number"),
        ({"steps": None}, "expected a whole number"),
        ({"steps": 0}, r"steps = 0: must be greater than 0"),
        ({"steps": 1, "rate": "x"}, "expected a number"),
        ({"steps": 1, "rate": True}, "expected a number"),
        ({"steps": 1, "rate": float("nan")}, "expected a finite number"),
        ({"steps": 1, "rate": float("inf")}, "expected a finite number"),
        ({"steps": 1, "rate": 10**400}, "expected a finite number"),
        ({"steps": 1, "rate": 1.01}, "must be from 0 to 1"),
        ({"steps": 1, "name": "c"}, "must be one of a, b"),
        ({"steps": 1, "name": 3}, "expected text in quotes"),
        ({"steps": 1, "on": 1}, "expected true or false"),
        ({"steps": 1, "seed": -1}, "must be 0 or more"),
        ({"steps": 1, "keep": 1}, "must be 2 or more"),
        ({"steps": 1, "paths": "x"}, "expected a list"),
        ({"steps": 1, "paths": [1]}, r"paths = 1: expected text"),
        ({"steps": 1, "caps": []}, "expected a table"),
        ({"steps": 1, "caps": {"code": "x"}}, r"caps\.code = 'x': expected a number"),
        ({"steps": 1, "loss": -1}, "must be greater than 0"),
        ({"steps": 1, "loss": "x"}, "expected a number"),
    ],
)
def test_what_is_wrong_is_said(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_table(Sample, table, "[t]")
    assert caught.value.hint


@pytest.mark.parametrize("value", [None, 3, 0.5, True, "steps", [], ["steps"]])
def test_what_is_no_table_is_said(value: Any) -> None:
    with pytest.raises(ConfigError, match="expected a table"):
        read_table(Sample, value, "[t]")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*Sample.__dataclass_fields__, "x"]), VALUES) | VALUES)
def test_no_value_of_any_shape_ends_in_another_error(table: Any) -> None:
    try:
        found = read_table(Sample, table, "[t]")
    except ConfigError:
        return
    assert found.steps > 0
    assert 0 <= found.rate <= 1
    assert orjson.dumps(found.paths)


def test_nearest() -> None:
    assert nearest("lerning", ["learning", "rate"]) == ' (did you mean "learning"?)'
    assert nearest("q", ["learning", "rate"]) == ""
    assert nearest("q", []) == ""
