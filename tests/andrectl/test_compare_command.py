"""andrectl compare on histories made by hand: where they part, who is ahead, what is told."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from andread.rundir import events
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import Policy, write_policies
from andrectl.pairing import Parting, pairs, parting

Table = dict[str, Any]


def write(path: Path, entries: list[Table]) -> None:
    lines = [json.dumps(entry, separators=(",", ":")) for entry in entries]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def series(
    steps: int, seed: int, level: float = 0.0, common: int = 100, **more: Any
) -> list[Table]:
    """Return entries that are common up to a step, and then noise around a level of their own."""
    shared, own = random.Random(0), random.Random(seed)
    found = []
    for step in range(1, steps + 1):
        ours = step > common
        noise = (own if ours else shared).gauss(0, 0.1)
        entry = {"step": step, "loss": 3 + noise + (level if ours else 0.0)}
        entry |= {"pulls": {"books": 24, "code": 24}, "t": 1.7e9 + step * (5 if ours else 10)}
        found.append(entry | ({"seed": seed, **more} if ours else {}))
    return found


@pytest.fixture
def made(run: RunDirectory, tmp_path: Path) -> Callable[..., RunDirectory]:
    """Make a run with these entries."""

    def make(name: str, entries: list[Table]) -> RunDirectory:
        new = RunDirectory(tmp_path / name)
        shutil.copytree(run.path, new.path)
        write(new.history, entries)
        return new

    return make


@pytest.fixture
def compare(andrectl):
    def call(*runs: RunDirectory, more: tuple[object, ...] = ()) -> list[Table]:
        result = andrectl("compare", *(run.path for run in runs), "--json", *more)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)["others"]

    return call


@pytest.mark.parametrize("common", [0, 1, 7, 99])
@pytest.mark.parametrize("steps", [(100, 100), (100, 120)])
def test_where_histories_part(tmp_path: Path, common: int, steps: tuple[int, int]) -> None:
    one, other = tmp_path / "a", tmp_path / "b"
    for path, count, seed in ((one, steps[0], 1), (other, steps[1], 2)):
        write(path, series(count, seed, common=common))
    found = parting(one, other)
    assert found.step == common
    head = one.read_bytes()[: found.length]
    assert other.read_bytes().startswith(head) and head.count(b'"step"') == common
    assert len(pairs(one, other).steps) == 100 - common


def test_one_history_that_goes_on_where_the_other_ends(tmp_path: Path) -> None:
    one, other = tmp_path / "a", tmp_path / "b"
    entries = series(100, 1)
    write(one, entries[:40])
    write(other, entries)
    for pair in ((one, other), (other, one)):
        assert parting(*pair).step == 40 and len(pairs(*pair).steps) == 0
    assert parting(one, one) == Parting(40, one.stat().st_size - 3)
    write(one, [])
    assert parting(one, other) == Parting(0, 2)
    assert parting(one, one) == Parting(0, 2)


def test_a_long_common_prefix(tmp_path: Path) -> None:
    one, other = tmp_path / "a", tmp_path / "b"
    for path, seed in ((one, 1), (other, 2)):
        write(path, series(30_000, seed, common=25_000))
    assert one.stat().st_size > 2 << 20
    assert parting(one, other).step == 25_000


def test_the_one_ahead(made, compare) -> None:
    a = made("a", series(600, 1))
    b = made("b", series(600, 2, level=0.05))
    c = made("c", series(600, 3, level=-0.05))
    d = made("d", series(600, 4))
    told = compare(a, b, c, d)
    assert [each["verdict"]["ahead"] for each in told] == ["first", "other", None]
    assert [each["verdict"]["why"] for each in told] == [*["more than noise"] * 2, "noise"]
    assert {each["parted_after"] for each in told} == {100}
    assert {each["steps"] for each in told} == {500}
    assert told[0]["training"]["difference"] == pytest.approx(0.05, abs=0.03)
    estimate = told[0]["training"]["estimate"]
    assert 0 < estimate["low"] < 0.05 < estimate["high"]
    assert (told[0]["training"]["from"], told[0]["training"]["judged_steps"]) == (351, 250)
    assert told[0]["steps_per_minute"] == [pytest.approx(12), pytest.approx(12)]
    assert told[0]["shares"] == {"books": [0.5, 0.5], "code": [0.5, 0.5]}


def test_the_steps_judged_by_can_be_chosen(made, compare) -> None:
    a = made("a", series(600, 1))
    late = series(500, 2) + series(600, 2, level=1.0)[500:]
    (told,) = compare(a, made("b", late), more=("--last", 100))
    assert told["training"]["from"] == 501
    assert told["training"]["difference"] == pytest.approx(1.0, abs=0.1)


def test_too_few_steps(made, compare, andrectl, tmp_path) -> None:
    a, b = made("a", series(105, 1)), made("b", series(105, 2))
    (told,) = compare(a, b)
    assert told["verdict"]["why"] == "too short" and told["training"]["estimate"] is None
    (told,) = compare(a, made("c", series(100, 2)))
    assert (told["steps"], told["training"]["difference"]) == (0, None)
    assert "too few steps" in andrectl("compare", a.path, b.path).stdout
    nothing = andrectl("compare", a.path, tmp_path / "c")
    assert "no step behind 100 was trained in both" in nothing.stdout
    assert f"start --run {tmp_path / 'c'}" in nothing.stderr


def test_steps_that_were_not_applied_are_left_out(made, compare) -> None:
    entries = series(300, 2)
    for entry in entries[150:160]:
        entry |= {"loss": None, "skipped": "nonfinite"}
    (told,) = compare(made("a", series(300, 1)), made("b", entries))
    assert (told["steps"], told["unpaired"]) == (190, 10)


def test_other_mixes_are_judged_by_validation(made, compare, andrectl) -> None:
    a = made("a", series(2000, 1))
    b = made("b", series(2000, 2, level=-1, pulls={"books": 40, "code": 8}))
    (told,) = compare(a, b)
    assert not told["same_mix"] and told["verdict"]["why"] == "not comparable"
    assert "not comparable" in andrectl("compare", a.path, b.path).stdout


def test_validation_by_source(made, compare, andrectl, monkeypatch) -> None:
    monkeypatch.setattr("andrectl.comparison._same_text", lambda *_: True)
    runs = []
    for name, seed, level in (("a", 1, 0.0), ("b", 2, 0.3)):
        pulls = {"books": 24 + seed * 5, "code": 24 - seed * 5}
        run = made(name, series(2000, seed, pulls=pulls))
        dice = random.Random(seed)
        for step in range(100, 2001, 100):
            losses = {"books": 4 + dice.gauss(0, 0.01), "code": 3 + level + dice.gauss(0, 0.01)}
            mean = sum(losses.values()) / 2
            events.emit(run.events, "audit", step=step, validation=losses, mean=mean)
        runs.append(run)
    (told,) = compare(*runs)
    validation = told["validation"]
    assert (validation["audits"], validation["step"]) == (19, 2000), "not that of the parting"
    assert not validation["sources"]["books"]["estimate"]["differs"]
    assert validation["sources"]["code"]["difference"] == pytest.approx(0.3, abs=0.02)
    assert told["verdict"] == {
        "ahead": "first",
        "by": "validation",
        "difference": validation["mean"]["difference"],
        "why": "more than noise",
    }
    assert "A is ahead by 0.1" in andrectl("compare", *(run.path for run in runs)).stdout


def test_what_differs_is_told(made, compare, andrectl) -> None:
    a, b = made("a", series(300, 1)), made("b", series(300, 2))
    text = b.settings.read_text()
    b.settings.write_text(text.replace("beta1 = 0.9", "beta1 = 0.8"))
    second = Policy(begins_after=100, caps={"code": 0.6}, overrides={"optimizer.lr": 1e-4})
    write_policies(b.policy, [Policy(), second])
    (told,) = compare(a, b)
    assert told["differences"]["settings"] == [{"key": "optimizer.beta1", "old": 0.9, "new": 0.8}]
    changed = {change["key"]: change["new"] for change in told["differences"]["policy"]}
    assert changed == {"caps.code": 0.6, "optimizer.lr": 1e-4}
    shown = andrectl("compare", a.path, b.path).stdout
    assert "optimizer.lr: 0.003 → 0.0001" in shown and "caps.code: none → 0.6" in shown


def test_the_run_of_the_option_is_the_first(made, andrectl) -> None:
    a, b = made("a", series(300, 1)), made("b", series(300, 2))
    told = json.loads(andrectl("--run", a.path, "compare", b.path, "--json").stdout)
    assert told["first"] == str(a.path) and told["others"][0]["run"] == str(b.path)


def test_refusals(made, andrectl, run) -> None:
    a = made("a", series(300, 1))
    for runs, code, said in (
        ((a.path,), 64, "is no fork"),
        ((a.path, a.path), 64, "the same run"),
        ((a.path, "/nowhere"), 66, "not a run directory"),
        ((a.path, run.path), 66, "no loss history"),
        ((), 64, "Missing argument"),
    ):
        result = andrectl("compare", *runs)
        assert result.exit_code == code and said in result.stderr, result.stderr


def test_damage_is_told_and_the_rest_is_compared(made, compare) -> None:
    a, b = made("a", series(300, 1)), made("b", series(300, 2))
    b.policy.write_text("{")
    b.events.mkdir()
    (told,) = compare(a, b)
    assert told["steps"] == 200 and told["differences"]["policy"] == []


def test_it_is_as_quick_for_a_long_run(made, compare) -> None:
    """Not a matter of the clock, but of not reading what is common twice."""
    a, b = (made(name, series(60_000, seed, common=59_000)) for name, seed in (("a", 1), ("b", 2)))
    begun = time.process_time()
    (told,) = compare(a, b)
    assert told["steps"] == 1000
    assert time.process_time() - begun < 60


def test_no_run_is_written_to(made, compare) -> None:
    a, b = made("a", series(300, 1)), made("b", series(300, 2))

    def seen() -> list[tuple[str, int]]:
        paths = (path for run in (a, b) for path in (run.path, *run.path.rglob("*")))
        return sorted((str(path), path.stat().st_mtime_ns) for path in paths)

    before = seen()
    compare(a, b)
    assert seen() == before


def test_chance_is_allowed_for(made, compare, andrectl) -> None:
    """Two long runs that are 0.3 % apart: within what chance does, unless one knows better."""
    a, b = made("a", series(4100, 1)), made("b", series(4100, 2, level=0.01))
    (told,) = compare(a, b)
    assert told["verdict"]["why"] == "noise"
    assert told["training"]["estimate"]["chance"] == pytest.approx(0.004 * 3, rel=0.01)
    (told,) = compare(a, b, more=("--chance", 0))
    assert told["verdict"]["ahead"] == "first"
    assert told["training"]["estimate"]["chance"] == 0
    (told,) = compare(a, b, more=("--chance", 0.001))
    assert told["verdict"]["ahead"] == "first"
    assert "0.0120 nats are allowed for chance" in andrectl("compare", a.path, b.path).stdout
