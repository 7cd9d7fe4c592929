from __future__ import annotations

import json

import pytest

from andread.rundir import files

SAMPLE = {"source": "books", "prompt": "Once ", "text": "upon\x1b[2J a\ntime", "distinct_2": 0.9}


@pytest.fixture
def audited(trained):
    audits = [
        {"step": step, "mean": 4.0, "validation": {"books": 4.0}, "samples": [SAMPLE]}
        for step in (100, 200)
    ]
    files.replace_json(trained.samples, {"format": 1, "policy": "p", "audits": audits})
    return trained


def test_the_latest(andrectl, audited) -> None:
    result = andrectl("--run", audited.path, "samples")
    assert result.exit_code == 0
    assert "step 200" in result.stdout and "step 100" not in result.stdout
    assert "    Once upon" in result.stdout and "    time" in result.stdout
    assert "\x1b" not in result.stdout


def test_json_of_several(andrectl, audited) -> None:
    told = json.loads(andrectl("--run", audited.path, "samples", "--last", 5, "--json").stdout)
    assert told["schema"] == 1
    assert [audit["step"] for audit in told["audits"]] == [100, 200]
    assert told["audits"][0]["samples"] == [SAMPLE]


def test_one_step(andrectl, audited) -> None:
    assert "step 100" in andrectl("--run", audited.path, "samples", "--step", 100).stdout
    result = andrectl("--run", audited.path, "samples", "--step", 150)
    assert result.exit_code == 66
    assert "100, 200" in result.stderr


def test_none_yet_and_damaged(andrectl, trained) -> None:
    result = andrectl("--run", trained.path, "samples")
    assert result.exit_code == 0 and "no audit yet" in result.stderr
    for content in (b"", b"[]", b'{"audits": 3}'):
        trained.samples.write_bytes(content)
        assert andrectl("--run", trained.path, "samples").exit_code == 65
    trained.samples.write_bytes(
        b'{"format": 1, "audits": [{"step": 5, "samples": [3, {"text": 5}], "validation": 1}]}'
    )
    assert andrectl("--run", trained.path, "samples", "--last", 9).exit_code == 0
