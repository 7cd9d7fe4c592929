"""Arms without a source: found, named, and kept out of every account."""

from __future__ import annotations

import orjson
import pytest

from andread.curriculum.mixing import Arm, Mixer, Zombie, make_mixer, restore
from andread.rundir.errors import ConfigError
from andread.rundir.policy import Policy, Warmup

POLICY = Policy(algorithm="ucb")
BEFORE = (Arm("books", 100), Arm("repo-docstrings", 100), Arm("web", 100))
AFTER = (Arm("books", 100), Arm("web", 100))


def taught(mixer: Mixer, steps: int) -> Mixer:
    """Let `repo-docstrings` learn fast, so that it holds most of the weight."""
    for step in range(mixer.step + 1, mixer.step + steps + 1):
        pulled = [place for place in range(len(mixer.arms)) for _ in range(8)]
        fall = {"repo-docstrings": 0.05, "web": 0.001}
        losses = [9 - step * fall.get(mixer.names[place], 0) + slot % 2
                  for slot, place in enumerate(pulled)]  # fmt: skip
        mixer.observe(step, pulled, losses, [0.0] * len(mixer.arms))
    return mixer


def test_a_zombie_is_named_with_what_it_held() -> None:
    record = taught(make_mixer(POLICY, BEFORE, 0), 40).record()
    mixer, zombies = restore(POLICY, AFTER, record)
    weight = record["arms"]["repo-docstrings"]["weight"]
    assert weight > 0.5
    assert zombies == (Zombie("repo-docstrings", 320, weight),)
    assert mixer.view(128)["zombies"] == {"repo-docstrings": {"pulls": 320, "weight": weight}}
    assert set(mixer.view(128)["arms"]) == {"books", "web"}


def test_a_zombie_changes_no_account() -> None:
    """The mixer goes on as one whose arms never knew the zombie."""
    record = taught(make_mixer(POLICY, BEFORE, 0), 40).record()
    haunted, _ = restore(POLICY, AFTER, record)
    for place in ("arms", *range(2)):
        table = record["arms"] if place == "arms" else record["probabilities"][place]
        table.pop("repo-docstrings")
    for pending in record["probabilities"]:
        pending.update(books=0.5, web=0.5)
    clean, none = restore(POLICY, AFTER, record)
    assert none == ()
    assert [a.step for a in (haunted, clean)] == [40, 40]
    for mixer in (haunted, clean):
        taught(mixer, 30)
    assert haunted.probabilities(71) == clean.probabilities(71)
    assert haunted.record()["arms"] == clean.record()["arms"]


def test_pending_probabilities_are_fixed_anew_when_an_arm_is_gone() -> None:
    mixer, _ = restore(POLICY, AFTER, taught(make_mixer(POLICY, BEFORE, 0), 40).record())
    for step in (41, 42):
        assert sum(mixer.probabilities(step)) == pytest.approx(1, abs=1e-12)
        assert len(mixer.probabilities(step)) == 2
    assert {mixer.draw(41, slot, 1) for slot in range(500)} == {0, 1}


def test_a_zombie_stays_on_record_until_a_pivot() -> None:
    mixer, first = restore(POLICY, AFTER, taught(make_mixer(POLICY, BEFORE, 0), 40).record())
    record = orjson.loads(orjson.dumps(taught(mixer, 5).record()))
    again, zombies = restore(POLICY, AFTER, record)
    assert zombies == first
    assert again.probabilities(46) == mixer.probabilities(46)
    assert make_mixer(POLICY, AFTER, 45).zombies == ()


def test_a_new_source_starts_fresh_and_is_named() -> None:
    record = taught(make_mixer(POLICY, AFTER, 0), 40).record()
    mixer, zombies = restore(POLICY, BEFORE, record)
    assert (zombies, mixer.newcomers) == ((), ("repo-docstrings",))
    state = mixer.record()["arms"]["repo-docstrings"]
    assert (state["pulls"], state["count"], state["rewards"]) == (0, 1.0, 0.0)
    assert mixer.probabilities(41)[1] == pytest.approx(1 / 3)


def test_a_source_that_comes_back_starts_fresh() -> None:
    haunted, _ = restore(POLICY, AFTER, taught(make_mixer(POLICY, BEFORE, 0), 40).record())
    mixer, zombies = restore(POLICY, BEFORE, haunted.record())
    assert (zombies, mixer.newcomers) == ((), ("repo-docstrings",))
    assert mixer.view(1)["arms"]["repo-docstrings"]["pulls"] == 0
    known = [haunted.view(1)["arms"].get(arm.name, {"epochs": 6.5})["epochs"] for arm in BEFORE]
    again, _ = restore(POLICY, BEFORE, haunted.record(), [9.0, 6.5, 9.0])
    assert [arm["epochs"] for arm in again.view(1)["arms"].values()] == known, "it reads on"


def test_another_order_of_the_same_sources_is_no_change() -> None:
    mixer = taught(make_mixer(POLICY, BEFORE, 0), 40)
    turned, zombies = restore(POLICY, BEFORE[::-1], mixer.record())
    assert (zombies, turned.newcomers) == ((), ())
    assert turned.probabilities(42) == mixer.probabilities(42)[::-1]


def test_bounds_of_a_zombie_are_ignored_and_named() -> None:
    policy = Policy(
        algorithm="ucb",
        caps={"repo-docstrings": 0.4, "web": 0.6},
        floors={"repo-docstrings": 0.3, "books": 0.2},
        warmup=Warmup(30, ("repo-docstrings", "web")),
    )
    record = taught(make_mixer(policy, BEFORE, 0), 40).record()
    mixer, zombies = restore(policy, AFTER, record)
    assert mixer.ignored == ("repo-docstrings",) == tuple(zombie.name for zombie in zombies)
    assert mixer.policy.id == mixer.record()["policy"] == policy.id
    books, web = taught(mixer, 20).probabilities(61)
    assert books + web == pytest.approx(1, abs=1e-12) and books >= 0.4 and web <= 0.6
    again, _ = restore(policy, BEFORE, mixer.record())
    assert again.ignored == () and 0.3 <= again.probabilities(61)[1] <= 0.4


def test_bounds_that_the_living_cannot_meet_are_refused_with_the_sums() -> None:
    policy = Policy(algorithm="ucb", caps={"books": 0.3, "web": 0.4})
    record = taught(make_mixer(policy, BEFORE, 0), 40).record()
    with pytest.raises(ConfigError, match=r"caps sum to 0.7 \(books 0.3 \+ web 0.4\)"):
        restore(policy, AFTER, record)
