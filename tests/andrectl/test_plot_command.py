"""What is drawn is read back from the figure: its lines' own data, not that a file is there."""

from __future__ import annotations

import json
import math
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stories import CAPS, FLOORS, NAMES, event, story

from andread.rundir import files, history
from andread.rundir.layout import RunDirectory
from andrectl import curves, picture
from andrectl.curves import Curves


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return story(tmp_path_factory.mktemp("told") / "first")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return story(tmp_path_factory.mktemp("other") / "second", steps=300, pivot=150, seed=2)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return story(tmp_path_factory.mktemp("long") / "long", steps=8000, pivot=5000)


def lines(figure: Any) -> dict[str, tuple[Any, Any]]:
    """Return x and y of every line that has a name."""
    return {
        line.get_gid(): (np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
        for axis in figure.axes
        for line in axis.lines
        if line.get_gid()
    }


def marked(figure: Any, kind: str) -> list[int]:
    found = [c for axis in figure.axes for c in axis.collections if c.get_gid() == kind]
    return sorted(int(x) for each in found for x in each.get_offsets()[:, 0])


def recorded(run: RunDirectory, key: str) -> list[Any]:
    return [math.nan if e.get(key) is None else e[key] for e in history.read(run.history)]


def test_every_step_of_a_short_run_is_drawn_as_recorded(told: RunDirectory) -> None:
    drawn = lines(picture.draw([curves.curves(told)]))
    for name in ("loss", "lr", "grad_norm"):
        x, y = drawn[name]
        assert list(x) == list(range(1, 501))
        np.testing.assert_array_equal(y, recorded(told, name))
    assert math.isnan(drawn["loss"][1][96]), "a step that was not applied is a gap"


def test_the_moving_average(told: RunDirectory) -> None:
    x, y = lines(picture.draw([curves.curves(told, horizon=20)]))["average"]
    average = weight = 0.0
    for step, loss in enumerate(recorded(told, "loss"), 1):
        if not math.isnan(loss):
            average, weight = average * 0.95 + loss * 0.05, weight * 0.95 + 0.05
        assert x[step - 1] == step and y[step - 1] == pytest.approx(average / weight, rel=1e-12)


def test_validation_and_its_sources(told: RunDirectory) -> None:
    drawn = lines(picture.draw([curves.curves(told)]))
    for place, name in enumerate(NAMES):
        x, y = drawn[f"validation:{name}"]
        assert list(x) == [100, 200, 300, 400, 500]
        np.testing.assert_allclose(y, [5.0 - s / 1000 + place / 10 for s in x])
    np.testing.assert_allclose(drawn["validation"][1], [5.0 - s / 1000 + 0.1 for s in x])


def test_shares_against_caps_and_floors(told: RunDirectory) -> None:
    drawn = lines(picture.draw([curves.curves(told)]))
    entries = list(history.read(told.history))
    for name in NAMES:
        x, y = drawn[f"share:{name}"]
        assert len(x) == 50
        pulls = [e["pulls"].get(name, 0) for e in entries]
        np.testing.assert_allclose(y[:2], [sum(pulls[:10]) / 120, sum(pulls[10:20]) / 120])
        np.testing.assert_allclose(x[:2], [5.5, 15.5])
    sums = sum(drawn[f"share:{name}"][1] for name in NAMES)
    np.testing.assert_allclose(sums, 1.0)
    for kind, bounds in (("cap", CAPS), ("floor", FLOORS)):
        for name in NAMES:
            if name not in bounds:
                assert f"{kind}:{name}" not in drawn
                continue
            x, y = drawn[f"{kind}:{name}"]
            assert list(x) == [201, 500] and list(y) == [bounds[name]] * 2


def test_what_happened_is_marked(told: RunDirectory) -> None:
    figure = picture.draw([curves.curves(told)])
    assert marked(figure, "pivot") == [200]
    assert marked(figure, "restart") == [200], "the first start is the beginning"
    assert marked(figure, "fault") == [251], "without a step: that of its time"
    assert marked(figure, "spike") == [333]
    assert marked(figure, "fork") == [400]
    assert marked(figure, "skipped step") == [97, 194, 291, 388, 485]
    loss = figure.axes[1]
    assert {200.5, 400.5} <= {line.get_xdata()[0] for line in loss.lines if not line.get_gid()}


def test_a_spike_of_one_step_survives_a_long_run(long: RunDirectory) -> None:
    found = curves.curves(long)
    assert found.width == 6 and len(found.steps) == 1334
    entries = list(history.read(long.history))
    losses = [e["loss"] for e in entries[330:336] if e["loss"] is not None]
    place = found.ends.index(336)
    assert (found.loss.low[place], found.loss.high[place]) == (min(losses), 50.0)
    assert found.loss.mean[place] == pytest.approx(sum(losses) / len(losses))
    figure = picture.draw([found])
    ((segment,),) = [
        c.get_segments() for c in figure.axes[1].collections if c.get_gid() == "loss:spikes"
    ]
    assert segment[:, 1].max() == 50.0 and segment[0, 0] == found.steps[place]
    assert figure.axes[1].get_ylim()[1] > 50
    assert all(len(x) <= curves.POINTS for x, _ in lines(figure).values())


def test_no_bucket_of_shares_straddles_a_pivot(long: RunDirectory) -> None:
    found = curves.curves(long)
    before = [s for x, s in zip(found.share_steps, found.shares["web"], strict=True) if x < 5000]
    after = [s for x, s in zip(found.share_steps, found.shares["web"], strict=True) if x > 5000]
    assert max(before) < 0.45 < min(after)


def test_several_runs_lie_over_one_another(told: RunDirectory, other: RunDirectory) -> None:
    drawn = lines(picture.draw([curves.curves(told), curves.curves(other)]))
    assert list(drawn["first/average"][0]) == list(range(1, 501))
    assert list(drawn["second/average"][0]) == list(range(1, 301))
    np.testing.assert_array_equal(drawn["second/loss"][1], recorded(other, "loss"))
    assert list(drawn["second/cap:web"][0]) == [151, 300]
    assert "first/share:code" in drawn and "second/share:code" in drawn


def test_a_part_of_the_steps(told: RunDirectory) -> None:
    found = curves.curves(told, since=150, until=250)
    drawn = lines(picture.draw([found]))
    assert list(drawn["loss"][0]) == list(range(150, 251))
    assert list(drawn["validation"][0]) == [200]
    assert {mark.kind for mark in found.marks} == {"pivot", "restart", "skipped step"}
    assert list(drawn["cap:web"][0]) == [201, 250]


def test_the_loss_on_a_logarithmic_scale(told: RunDirectory) -> None:
    assert picture.draw([curves.curves(told)], log=True).axes[1].get_yscale() == "log"
    assert picture.draw([curves.curves(told)]).axes[1].get_yscale() == "linear"


def test_files(andrectl, told: RunDirectory, other: RunDirectory, tmp_path: Path) -> None:
    png, svg = tmp_path / "a.png", tmp_path / "a.svg"
    result = andrectl("--run", told.path, "plot", "--out", png)
    assert result.exit_code == 0 and result.stdout.strip() == str(png)
    assert "next: " in result.stderr
    data = png.read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) > 50_000
    assert andrectl("plot", told.path, other.path, "--out", svg).exit_code == 0
    texts = "".join(ElementTree.parse(svg).getroot().itertext())
    assert "first" in texts and "second" in texts and "gradient norm" in texts
    before = svg.read_bytes()
    assert andrectl("plot", told.path, other.path, "--out", svg).exit_code == 0
    assert svg.read_bytes() == before, "the same bytes for the same runs"


def test_json_tells_what_was_drawn(andrectl, told: RunDirectory, tmp_path: Path) -> None:
    result = andrectl("--run", told.path, "plot", "--out", tmp_path / "a.svg", "--json")
    answer = json.loads(result.stdout)
    assert answer["schema"] == 1
    (drawn,) = answer["runs"]
    assert (drawn["first"], drawn["last"], drawn["steps_a_point"]) == (1, 500, 1)
    assert {"step": 200, "kind": "pivot", "detail": "new"} in drawn["marks"]


def test_in_the_terminal(andrectl, told: RunDirectory, other: RunDirectory, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    result = andrectl("--run", told.path, "plot", "--terminal")
    assert result.exit_code == 0
    rows = result.stdout.splitlines()
    assert all(len(row) <= 90 for row in rows)
    assert "first: loss" in result.stdout and "validation loss" in result.stdout
    assert "shares of the pulls" in result.stdout and "books" in result.stdout
    assert " 500" in result.stdout and "\x1b" not in result.stdout
    top = next(row for row in rows if "┤" in row)
    assert float(top.split("┤")[0]) == pytest.approx(50, abs=0.1), "up to the spike"
    both = andrectl("plot", told.path, other.path, "--terminal").stdout
    assert "first" in both and "second" in both and both.count("shares of the pulls") == 2
    assert andrectl("--run", told.path, "plot", "--terminal", "--log").exit_code == 0


def test_colour_only_where_it_is_seen_and_wanted(told: RunDirectory) -> None:
    from andrectl import terminal

    found = [curves.curves(told)]
    assert "\x1b[" in terminal.draw(found, 80, color=True)
    assert "\x1b" not in terminal.draw(found, 80, color=False)


def test_runs_with_little_in_them(andrectl, run: RunDirectory, tmp_path: Path) -> None:
    out = tmp_path / "a.png"
    result = andrectl("--run", run.path, "plot", "--out", out)
    assert result.exit_code == 66 and "no recorded step" in result.stderr and not out.exists()
    one = story(tmp_path / "one", steps=1, pivot=1)
    (one.events).unlink()
    assert andrectl("--run", one.path, "plot", "--out", out, "--terminal").exit_code == 0
    files.replace(one.policy, b"[")
    assert andrectl("--run", one.path, "plot", "--out", out).exit_code == 0
    torn = story(tmp_path / "torn", steps=20, pivot=5)
    with torn.history.open("r+b") as stream:
        stream.truncate(torn.history.stat().st_size - 30)
    found: Curves = curves.curves(torn)
    assert found.last == 19 and found.ends[-1] == 19


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), 64),
        (("--out", "a.gif"), 64),
        (("--out", "a.png", "--since", "9", "--until", "3"), 64),
        (("--out", "/nowhere/a.png"), 66),
        (("/nowhere", "--out", "a.png"), 66),
    ],
)
def test_what_is_refused(andrectl, told: RunDirectory, words: tuple[str, ...], code: int) -> None:
    result = andrectl("plot", *words, "--run", told.path)
    assert result.exit_code == code and "hint: " in result.stderr


@pytest.mark.parametrize(
    ("module", "extra", "words"),
    [
        ("matplotlib", "plot", ("plot", "--out", "a.png")),
        ("plotext", "terminal", ("plot", "--terminal")),
        ("tensorboardX", "tensorboard", ("export", "--to", "tensorboard", "--out", "tb")),
    ],
)
def test_a_library_that_is_not_installed(
    andrectl, told: RunDirectory, monkeypatch, module: str, extra: str, words: tuple[str, ...]
) -> None:
    for name in list(sys.modules):
        if name == module or name.startswith(f"{module}."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    result = andrectl(*words, "--run", told.path)
    assert result.exit_code == 78
    assert f"pip install 'andread[{extra}]'" in result.stderr and module in result.stderr


def test_an_event_before_the_first_step_and_after_the_last(tmp_path: Path) -> None:
    run = story(tmp_path / "edge", steps=10, pivot=5)
    late = event("fault", None, 1e9, what="x", detail="late")
    early = event("fault", None, -5.0, what="x", detail="early")
    with run.events.open("ab") as stream:
        stream.write(json.dumps(late).encode() + b"\n" + json.dumps(early).encode() + b"\n")
    steps = [mark.step for mark in curves.curves(run).marks if mark.kind == "fault"]
    assert sorted(steps) == [1, 10, 10]
