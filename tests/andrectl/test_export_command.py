"""What is exported is read back: every step, every float, every event."""

from __future__ import annotations

import csv
import io
import json
import math
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from stories import NAMES, story

from andread.rundir import events, history, policy
from andread.rundir.layout import RunDirectory

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return story(tmp_path_factory.mktemp("told") / "run")


def test_jsonl_is_the_history_and_the_events(andrectl, told: RunDirectory) -> None:
    out = andrectl("--run", told.path, "export", "--to", "jsonl").stdout
    rows = [orjson.loads(line) for line in out.splitlines()]
    kinds = [row.pop("kind") for row in rows]
    steps = [row for kind, row in zip(kinds, rows, strict=True) if kind == "step"]
    assert steps == list(history.read(told.history))
    said = [row for kind, row in zip(kinds, rows, strict=True) if kind == "event"]
    key = orjson.dumps
    assert sorted(map(key, said)) == sorted(map(key, events.read(told.events)))
    assert kinds[:2] == ["event", "event"], "what was before step 1"
    place = rows.index(next(row for row in said if row["event"] == "pivot"))
    assert max(row["step"] for row in rows[:place] if "loss" in row) == 200
    fault = rows.index(next(row for row in said if row["event"] == "fault"))
    assert max(row["step"] for row in rows[:fault] if "lr" in row) == 251


def test_csv_round_trip(andrectl, told: RunDirectory, tmp_path: Path) -> None:
    out = tmp_path / "run.csv"
    result = andrectl("--run", told.path, "export", "--to", "csv", "--out", out)
    assert result.exit_code == 0 and not result.stdout and "500 steps" in result.stderr
    with out.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    entries = list(history.read(told.history))
    assert len(rows) == len(entries) == 500
    for row, entry in zip(rows, entries, strict=True):
        assert int(row["step"]) == entry["step"] and float(row["t"]) == entry["t"]
        assert float(row["lr"]) == entry["lr"] and float(row["grad_norm"]) == entry["grad_norm"]
        assert (float(row["loss"]) if row["loss"] else None) == entry["loss"]
        assert row["skipped"] == entry.get("skipped", "")
        assert {n: int(row[f"pulls.{n}"]) for n in NAMES} == {
            n: entry["pulls"].get(n, 0) for n in NAMES
        }
    assert [int(row["step"]) for row in rows if row["validation.mean"]] == [
        *(100, 200, 300, 400, 500)
    ]
    assert float(rows[99]["validation.code"]) == 5.0 - 0.1 + 0.1
    assert rows[199]["events"] == "audit pivot started"
    assert rows[250]["events"] == "fault" and rows[10]["events"] == ""
    listed = policy.read_policies(told.policy)
    assert [rows[199]["policy"], rows[200]["policy"]] == [each.id for each in listed]


def test_stdout_and_a_pipe_that_closes(told: RunDirectory) -> None:
    line = [sys.executable, "-m", "andrectl", "--run", str(told.path), "export", "--to"]
    done = subprocess.run([*line, "csv"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(list(csv.reader(io.StringIO(done.stdout)))) == 501
    for form in ("csv", "jsonl"):
        with subprocess.Popen(
            [*line, form], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.close()
            assert process.wait(60) == 0
            assert "rror" not in process.stderr.read()


def read_event_file(directory: Path) -> list[Any]:
    """Read the records of TensorBoard's file: length, its check, the event, its check."""
    from tensorboardX.crc32c import crc32c
    from tensorboardX.proto.event_pb2 import Event

    def masked(data: bytes) -> int:
        crc = crc32c(data)
        return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    (path,) = directory.glob("*tfevents*")
    data, found, offset = path.read_bytes(), [], 0
    while offset < len(data):
        head = data[offset : offset + 8]
        (length,) = struct.unpack("<Q", head)
        assert struct.unpack_from("<I", data, offset + 8) == (masked(head),)
        body = data[offset + 12 : offset + 12 + length]
        assert struct.unpack_from("<I", data, offset + 12 + length) == (masked(body),)
        found.append(Event.FromString(body))
        offset += length + 16
    return found


def test_tensorboard_round_trip(andrectl, told: RunDirectory, tmp_path: Path) -> None:
    out = tmp_path / "tb"
    result = andrectl("--run", told.path, "export", "--to", "tensorboard", "--out", out, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["steps"] == 500
    scalars: dict[str, dict[int, tuple[float, float]]] = {}
    texts: dict[str, list[int]] = {}
    for event in read_event_file(out):
        for value in event.summary.value:
            if value.HasField("simple_value"):
                scalars.setdefault(value.tag, {})[event.step] = (
                    event.wall_time,
                    value.simple_value,
                )
            else:
                texts.setdefault(value.tag.removesuffix("/text_summary"), []).append(event.step)
    for entry in history.read(told.history):
        step, t = entry["step"], entry["t"]
        for key in ("loss", "lr", "grad_norm"):
            wall, value = scalars[key][step]
            assert wall == t
            if entry[key] is None:
                assert math.isnan(value)
            else:
                assert value == float(np.float32(entry[key]))
        for name in NAMES:
            assert scalars[f"pulls/{name}"][step] == (t, entry["pulls"].get(name, 0))
    assert sorted(scalars["validation/mean"]) == [100, 200, 300, 400, 500]
    assert scalars["validation/web"][300][1] == pytest.approx(4.9, rel=1e-6)
    assert texts["events/pivot"] == [200] and texts["events/fault"] == [251]


def test_what_is_there_is_not_overwritten(andrectl, told: RunDirectory, tmp_path: Path) -> None:
    out = tmp_path / "run.csv"
    out.write_text("mine", encoding="utf-8")
    line = ("--run", told.path, "export", "--to", "csv", "--out", out)
    result = andrectl(*line)
    assert result.exit_code == 73 and out.read_text(encoding="utf-8") == "mine"
    assert andrectl(*line, "--force").exit_code == 0
    assert out.read_text(encoding="utf-8").startswith("step,t,loss")
    assert [path.name for path in tmp_path.glob(".run.csv*")] == []
    board = ("--run", told.path, "export", "--to", "tensorboard", "--out", tmp_path / "tb")
    assert andrectl(*board).exit_code == 0
    assert andrectl(*board).exit_code == 73, "a second file would double the curves"


def test_what_is_refused(andrectl, told: RunDirectory, run: RunDirectory, tmp_path: Path) -> None:
    export = ("export", "--run", told.path, "--to")
    assert andrectl(*export, "tensorboard").exit_code == 64
    assert andrectl(*export, "csv", "--json").exit_code == 64
    assert andrectl(*export, "parquet").exit_code == 64
    assert andrectl(*export, "csv", "--out", tmp_path / "no" / "x.csv").exit_code == 66
    result = andrectl("export", "--run", run.path, "--to", "csv")
    assert result.exit_code == 66 and "no loss history" in result.stderr


def test_a_source_that_joined_later_and_a_torn_end(andrectl, tmp_path: Path) -> None:
    run = story(tmp_path / "grown", steps=30, pivot=10)
    text = run.history.read_text(encoding="utf-8").replace('"web":', '"poems":')
    run.history.write_text(text[:-40], encoding="utf-8")
    run.policy.unlink()
    out = andrectl("export", "--run", run.path, "--to", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 29 and "pulls.poems" in rows[0] and rows[0]["policy"] == ""
