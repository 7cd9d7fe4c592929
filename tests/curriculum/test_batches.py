"""Batches drawn ahead are the batches drawn in turn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from preparing import make_run, settings_of, words, write_texts

from andread.curriculum.batches import Curriculum
from andread.curriculum.prepare import prepare
from andread.curriculum.tokens import SourceTokens, open_source
from andread.rundir.policy import Policy


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[SourceTokens]:
    root: Path = tmp_path_factory.mktemp("run")
    tables = []
    for name, count in (("books", 8), ("small", 2)):
        write_texts(root / name, count)
        tables.append({"name": name, "paths": [name]})
    run = make_run(root, tables)
    prepare(run, settings_of(run))
    return [open_source(run, name, 16) for name in ("books", "small")]


def curriculum(sources: list[SourceTokens], *policies: Policy) -> Curriculum:
    return Curriculum(sources, policies, 3, lambda _: 6, 16)


def losses() -> list[float]:
    return [5.0 - slot / 7 for slot in range(6)]


@pytest.mark.parametrize("algorithm", ["uniform", "ucb"])
def test_a_batch_drawn_ahead_is_the_one_drawn_in_turn(
    sources: list[SourceTokens], algorithm: str
) -> None:
    """Over many epochs of the small source, and with rewards that come in between."""
    one = curriculum(sources, Policy(algorithm=algorithm, max_epochs=2.0))
    batch = one.draw(1)
    for step in range(1, 120):
        ahead = one.ahead(batch)
        again = one.draw(step)
        assert (again.arms, again.windows.tolist()) == (batch.arms, batch.windows.tolist())
        one.advance(batch, losses() if step % 5 else None)
        batch = one.draw(step + 1)
        assert ahead is not None
        assert (ahead.step, ahead.arms) == (batch.step, batch.arms)
        assert np.array_equal(ahead.windows, batch.windows)


def test_one_text_over_and_over_is_soon_read_again_and_earns_nothing(tmp_path: Path) -> None:
    """Its losses fall as those of the other source do; by windows it is far from read once."""
    write_texts(tmp_path / "books", 60)
    (tmp_path / "psalm.txt").write_text(words(99, 150) * 80, encoding="utf-8")
    names = ("books", "psalm")
    run = make_run(
        tmp_path,
        [{"name": "books", "paths": ["books"]}, {"name": "psalm", "paths": ["psalm.txt"]}],
    )
    prepare(run, settings_of(run))
    both = [open_source(run, name, 16) for name in names]
    one = curriculum(both, Policy(algorithm="ucb", max_epochs=5.0))
    sunk = []
    for step in range(1, 61):
        batch = one.draw(step)
        sunk += one.advance(batch, [9 - step * 0.05 + slot % 2 for slot in range(6)])
    books, psalm = one.epochs()
    assert books < 1 < 5 < psalm
    windows = one.record()["positions"]["psalm"]
    assert windows < len(both[1].train)
    passes = windows / len(both[1].train)
    assert psalm == pytest.approx(passes / both[1].manifest.unique_share)
    arms = one.view()["arms"]
    assert arms["books"]["ema_reward"] > 1 > 0.01 > arms["psalm"]["ema_reward"]
    assert [event["arm"] for event in sunk] == ["psalm"]
    for source in both:
        source.close()


def test_nothing_is_drawn_ahead_of_another_policy(sources: list[SourceTokens]) -> None:
    first = Policy()
    second = Policy(begins_after=2, caps={"books": 0.2})
    one = curriculum(sources, first, second)
    batch = one.draw(1)
    assert one.ahead(batch) is not None
    one.advance(batch, losses())
    batch = one.draw(2)
    assert one.ahead(batch) is None
    one.advance(batch, losses())
    assert one.policy is second
