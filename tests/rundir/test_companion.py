"""The companion: whatever is wrong with one is a verdict on it, not a crash."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from andread.rundir import companion
from andread.rundir.companion import Companion
from andread.rundir.errors import DataError
from tests.rundir.helpers import STRANGERS, put_stranger, temporaries

WHOLE = Companion(
    step=100,
    n_params=5,
    sha256="0123456789abcdef" * 4,
    history_length=2,
    history_sha256="f" * 64,
    policy="p0",
    reasons=("cadence", "signal"),
    t=1_700_000_000.125,
    requests=("abc",),
    curriculum={"mixer": {"weights": [0.1, 1 / 3], "seed": 2**64 - 1}, "positions": {"code": 7}},
    scaler={"scale": 65536.0},
    counters={"skipped": 0, "average": None},
    trajectory={"optimizer.lr": 3e-3, "model.activation": "gelu_tanh"},
    data={"code": "a" * 64},
    environment={"threads": 2},
)


def test_it_goes_round_with_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "step_000100.json"
    companion.write(path, WHOLE)
    assert companion.read(path) == WHOLE
    assert temporaries(tmp_path) == []


def test_golden_text_loads(tmp_path: Path) -> None:
    path = tmp_path / "step_000000.json"
    path.write_text(
        '{"step": 0, "n_params": 3, "sha256": "' + "0" * 64 + '", "history_length": 2,'
        '"history_sha256": "' + "1" * 64 + '", "policy": "p", "reasons": ["start"], "t": 1,'
        '"checksum": "5757d4d448b9fb0739b7d63945fdccd181e671485398b89808eed816c3246274"}'
    )
    found = companion.read(path)
    assert (found.step, found.n_params, found.t, found.format) == (0, 3, 1.0, companion.FORMAT)
    assert found.curriculum == {} and found.requests == ()


def changed(**changes: Any) -> bytes:
    table = dataclasses.asdict(WHOLE) | changes
    return seal({key: value for key, value in table.items() if value != "absent"})


def seal(table: dict[str, Any]) -> bytes:
    """Return the bytes of a companion with this content, its checksum right."""
    return orjson.dumps(companion.sealed(orjson.loads(json.dumps(table))))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (changed()[:-1], "not valid JSON"),
        (b"\0" * 500, "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"curriculum":' * 50_000, "not valid JSON"),
        (b"[]", "not a companion"),
        (b"null", "not a companion"),
        (b"{}", "checksum"),
        (json.dumps(dataclasses.asdict(WHOLE)).encode(), "checksum"),
        (changed().replace(b'"threads":2', b'"threads":3'), "checksum"),
        (changed(step="absent"), '"step" is missing'),
        (changed(sha256="absent"), '"sha256" is missing'),
        (changed(step=-1), "must be 0 or more"),
        (changed(step="1"), "expected a whole number"),
        (changed(step=1.0), "expected a whole number"),
        (changed(step=10**30), "expected a whole number"),
        (changed(n_params=0), "must be greater than 0"),
        (changed(sha256="A" * 64), "64 hexadecimal digits"),
        (changed(sha256="0" * 63), "64 hexadecimal digits"),
        (changed(history_sha256=None), "expected text"),
        (changed(history_length=-1), "must be 0 or more"),
        (changed(reasons="cadence"), "expected a list"),
        (changed(curriculum=[]), "expected a table"),
        (changed(data={"code": 3}), "expected text"),
        (changed(format=2), "format = 2: must be 1"),
        (changed(format=2, later={}), "format = 2: must be 1"),
        (changed(stranger=1), 'unknown key "stranger"'),
    ],
)
def test_damage_is_a_data_error_that_says_what(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "step_000100.json"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        companion.read(path)


def test_cut_off_at_every_byte(tmp_path: Path) -> None:
    path, data = tmp_path / "step_000100.json", changed()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(DataError):
            companion.read(path)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(key=st.sampled_from([field.name for field in dataclasses.fields(Companion)]), value=JSON)
def test_any_value_under_any_key_is_taken_or_refused(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "companion.json"
    path.write_bytes(seal(dataclasses.asdict(WHOLE) | {key: value}))
    try:
        found = companion.read(path)
    except DataError:
        return
    assert found.n_params > 0 and found.step >= 0 and len(found.sha256) == 64


@pytest.mark.parametrize("kind", STRANGERS)
def test_no_regular_file_no_companion(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "step_000100.json"
    path.write_bytes(changed())
    put_stranger(path, kind)
    with pytest.raises(DataError, match="not a regular file"):
        companion.read(path)


def test_absent_one_is_the_callers_to_judge(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        companion.read(tmp_path / "step_000100.json")
