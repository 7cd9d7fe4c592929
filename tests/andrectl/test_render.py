from __future__ import annotations

import pytest

from andrectl import render


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.04, "0.0s"),
        (9.96, "10.0s"),
        (59.6, "1m 00s"),
        (3599.9, "1h 00m"),
        (61, "1m 01s"),
        (86_400, "1d 0h"),
        (float("inf"), "-"),
        (-3, "0.0s"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert render.duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (8_060_936, "8.06 MB"),
        (1_439_170_568, "1.44 GB"),
        (999_700, "1 MB"),
        (2.5e12, "2.5 TB"),
        (5e15, "5,000 TB"),
    ],
)
def test_size(number: float | None, text: str) -> None:
    assert render.size(number) == text


def test_bar_and_sparkline() -> None:
    assert render.bar(0, 4) == "····" and render.bar(1, 4) == "████"
    assert render.bar(0.5, 4) == "██··" and render.bar(7, 4) == "████"
    assert all(len(render.bar(share / 97, 10)) == 10 for share in range(97))
    assert render.sparkline([]) == ""
    assert render.sparkline([1, 2, 3]) == "▁▅█"
    assert len(render.sparkline([1.0] * 500, 24)) == 24


def test_table() -> None:
    assert render.table(["a", "b"], [["x", "10"], ["yyy", "5"]]) == "a     b\nx    10\nyyy   5"
    assert render.count(1, "checkpoint") == "1 checkpoint"
    assert render.count(1200, "checkpoint") == "1,200 checkpoints"
