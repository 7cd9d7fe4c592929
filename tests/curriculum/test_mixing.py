"""The mixer: baselines, lag, exact resume, phases, caps and floors over long runs."""

from __future__ import annotations

import math
import random
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from andread.curriculum.mixing import Arm, Event, Mixer, make_mixer, pick, restore
from andread.randomness import key
from andread.rundir.errors import ConfigError, DataError
from andread.rundir.policy import ALGORITHMS, Policy, Warmup

ARMS = (Arm("books", 100), Arm("code", 300), Arm("web", 600))
STREAM = key(7, "mix")
BATCH = 16

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A loaded machine is no failure."""


def losses_at(step: int, pulled: list[int]) -> list[float]:
    """Return losses that are a function of the step: arm 0 learns, arm 2 is noisy."""
    rng = random.Random(step)
    level = (7 / (1 + step / 50), 3.0, 4.0)
    return [level[arm] + rng.gauss(0, (0.3, 0.3, 1.0)[arm]) for arm in pulled]


class Run:
    """A run of `mixer`: what it drew, what it reported, and its positions in the sources."""

    def __init__(self, mixer: Mixer, windows: list[int] | None = None) -> None:
        self.mixer = mixer
        self.windows = windows or [0] * len(mixer.arms)
        self.drawn: list[list[int]] = []
        self.events: list[Event] = []

    def to(self, last: int) -> Run:
        for step in range(self.mixer.step + 1, last + 1):
            pulled = [self.mixer.draw(step, slot, STREAM) for slot in range(BATCH)]
            self.drawn.append(pulled)
            for place in pulled:
                self.windows[place] += 1
            losses = None if step % 17 == 0 else losses_at(step, pulled)
            epochs = [w / arm.windows for w, arm in zip(self.windows, self.mixer.arms, strict=True)]
            self.events += self.mixer.observe(step, pulled, losses, epochs)
        return self

    def shares(self) -> list[float]:
        total = sum(map(len, self.drawn))
        return [
            sum(pulled.count(place) for pulled in self.drawn) / total
            for place in range(len(self.mixer.arms))
        ]


RICH = Policy(
    algorithm="ucb",
    caps={"web": 0.6},
    floors={"code": 0.15},
    warmup=Warmup(20, ("code", "web")),
    max_epochs=6,
)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(), [1 / 3, 1 / 3, 1 / 3]),
        (Policy(algorithm="proportional"), [0.1, 0.3, 0.6]),
        (
            Policy(algorithm="fixed", weights={"books": 5, "code": 0, "web": 5}),
            [0.5, 0.0, 0.5],
        ),
        (Policy(algorithm="ucb"), [1 / 3, 1 / 3, 1 / 3]),
        (Policy(caps={"web": 0.1}), [0.45, 0.45, 0.1]),
        (Policy(algorithm="proportional", floors={"books": 0.55}), [0.55, 0.15, 0.3]),
    ],
)
def test_the_first_steps_by_hand(policy: Policy, expected: list[float]) -> None:
    mixer = make_mixer(policy, ARMS, 0)
    for step in (1, 2):
        assert mixer.probabilities(step) == pytest.approx(expected, abs=1e-8)


def test_rewards_enter_with_a_lag_of_one_step() -> None:
    one, other = (Run(make_mixer(Policy(algorithm="ucb"), ARMS, 0)).to(30).mixer for _ in "ab")
    pulled = [one.draw(31, slot, STREAM) for slot in range(BATCH)]
    one.observe(31, pulled, [0.5] * BATCH, [0, 0, 0])
    other.observe(31, pulled, [9.5] * BATCH, [0, 0, 0])
    assert one.probabilities(32) == other.probabilities(32)
    assert one.probabilities(33) != other.probabilities(33)


def test_only_two_steps_are_fixed_and_steps_are_observed_in_order() -> None:
    mixer = Run(make_mixer(Policy(), ARMS, 10)).to(12).mixer
    for step in (12, 15):
        with pytest.raises(ValueError, match="not fixed"):
            mixer.probabilities(step)
    for step in (12, 14):
        with pytest.raises(ValueError, match="does not follow"):
            mixer.observe(step, [], None, [0, 0, 0])


def test_a_step_not_applied_teaches_nothing() -> None:
    mixer = Run(make_mixer(Policy(algorithm="ucb"), ARMS, 0)).to(40).mixer
    before = mixer.record()
    epochs = [before["arms"][name]["epochs"] for name in mixer.names]
    mixer.observe(41, [0] * BATCH, None, epochs)
    assert mixer.record()["arms"] == before["arms"]
    assert mixer.probabilities(43) == mixer.probabilities(42)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_resume_at_any_step_is_bit_exact(algorithm: str) -> None:
    weights = {"books": 1.0, "code": 2.0, "web": 3.0} if algorithm == "fixed" else {}
    policy = Policy(
        algorithm=algorithm,
        weights=weights,
        caps=RICH.caps,
        floors=RICH.floors,
        warmup=RICH.warmup,
        max_epochs=2,
    )
    unbroken = Run(make_mixer(policy, ARMS, 0)).to(250)
    assert [event["event"] for event in unbroken.events].count("sunk") >= 1
    rng = random.Random(algorithm)
    broken = Run(make_mixer(policy, ARMS, 0))
    for stop in [*sorted(rng.sample(range(250), 20)), 250]:
        broken.to(stop)
        record = orjson.loads(orjson.dumps(broken.mixer.record()))
        assert record == broken.mixer.record()
        broken.mixer, zombies = restore(policy, ARMS, record)
        assert zombies == ()
        assert broken.mixer.newcomers == ()
    assert broken.drawn == unbroken.drawn
    assert broken.events == unbroken.events
    assert orjson.dumps(broken.mixer.record()) == orjson.dumps(unbroken.mixer.record())


def test_bounds_hold_at_every_step_and_over_a_long_run() -> None:
    """Arm 0 dominates up to its cap, arm 1 has nothing to teach and gets its floor."""
    policy = Policy(algorithm="ucb", caps={"books": 0.4}, floors={"code": 0.3})
    run = Run(make_mixer(policy, ARMS, 0))
    for _ in range(600):
        run.to(run.mixer.step + 1)
        books, code, web = run.mixer.probabilities(run.mixer.step + 2)
        assert books <= 0.4
        assert code >= 0.3
        assert math.fsum((books, code, web)) == pytest.approx(1, abs=1e-12)
    error = 4 * math.sqrt(0.25 / (600 * BATCH))
    books, code, web = run.shares()
    assert books <= 0.4 + error
    assert code >= 0.3 - error
    assert web > 0.1


def test_a_dominating_arm_meets_its_cap_and_a_hopeless_one_its_floor() -> None:
    policy = Policy(
        algorithm="fixed",
        weights={"books": 1e6, "code": 0, "web": 1},
        caps={"books": 0.7},
        floors={"code": 0.1},
    )
    assert make_mixer(policy, ARMS, 0).probabilities(1) == pytest.approx((0.7, 0.1, 0.2))
    run = Run(make_mixer(policy, ARMS, 0)).to(600)
    assert run.shares() == pytest.approx([0.7, 0.1, 0.2], abs=4 * math.sqrt(0.25 / 9600))


def test_the_draws_follow_the_probabilities() -> None:
    mixer = make_mixer(Policy(algorithm="proportional"), ARMS, 0)
    drawn = [mixer.draw(1, slot, STREAM) for slot in range(20_000)]
    for place, share in enumerate((0.1, 0.3, 0.6)):
        error = math.sqrt(share * (1 - share) / 20_000)
        assert abs(drawn.count(place) / 20_000 - share) < 4 * error


def test_in_the_warmup_only_its_sources_are_pulled() -> None:
    policy = Policy(warmup=Warmup(30, ("books", "web")), floors={"code": 0.5})
    run = Run(make_mixer(policy, ARMS, 0)).to(60)
    assert not any(1 in pulled for pulled in run.drawn[:30])
    assert all(1 in pulled for pulled in run.drawn[30:])
    pivot = make_mixer(Policy(begins_after=10, warmup=policy.warmup), ARMS, 10)
    assert pivot.probabilities(12) == (0.5, 0.0, 0.5)
    later = make_mixer(Policy(begins_after=30, warmup=policy.warmup), ARMS, 30)
    assert later.probabilities(31) == pytest.approx([1 / 3] * 3)


def test_a_source_read_too_often_sinks_to_its_floor() -> None:
    policy = Policy(max_epochs=2, floors={"books": 0.05})
    run = Run(make_mixer(policy, ARMS, 0)).to(60)
    assert [(e["event"], e["arm"]) for e in run.events] == [("sunk", "books")]
    assert run.events[0]["epochs"] > 2
    assert run.mixer.probabilities(61) == pytest.approx([0.05, 0.475, 0.475])
    assert run.mixer.sunk == ("books",)


def test_a_pivot_knows_what_was_read_before_it() -> None:
    mixer = make_mixer(Policy(max_epochs=2, begins_after=100), ARMS, 100, [5.0, 0.1, 0.1])
    assert mixer.probabilities(101) == (0.0, 0.5, 0.5)


def test_sunk_sources_share_what_the_caps_of_the_others_leave() -> None:
    policy = Policy(max_epochs=2, caps={"code": 0.2, "web": 0.3})
    run = Run(make_mixer(policy, ARMS, 0)).to(100)
    assert [e["event"] for e in run.events] == ["sunk", "remainder"]
    assert run.events[1]["arms"] == ["books"]
    assert run.mixer.probabilities(101) == pytest.approx([0.5, 0.2, 0.3])


def test_when_all_have_sunk_they_share_as_before() -> None:
    mixer = make_mixer(Policy(max_epochs=2), ARMS, 0)
    events = mixer.observe(1, [0], [1.0], [3, 3, 3])
    assert [e["event"] for e in events] == ["sunk", "sunk", "sunk", "remainder"]
    assert mixer.probabilities(3) == pytest.approx([1 / 3] * 3)


@unhurried
@given(
    st.lists(st.sampled_from([0.0, 1e-17, 0.1, 0.3]), min_size=1, max_size=12).filter(any),
    st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53])),
)
def test_an_arm_of_probability_0_is_never_picked(raw: list[float], point: float) -> None:
    total = math.fsum(raw)
    shares = [value / total for value in raw]
    assert shares[pick(shares, point)] > 0


def test_pick_at_the_edges() -> None:
    assert pick([0.0, 0.5, 0.0, 0.5, 0.0], 0.0) == 1
    assert pick([0.0, 0.5, 0.0, 0.5, 0.0], 0.5) == 3
    assert pick([0.1] * 10 + [0.0], 1 - 2**-53) == 9  # ten tenths sum to less than the point


def test_the_view_is_plain_json_for_a_person() -> None:
    run = Run(make_mixer(RICH, ARMS, 0)).to(50)
    view = orjson.loads(orjson.dumps(run.mixer.view(context=128)))
    assert view["phase"] == {"name": "all", "steps": 30, "of": None}
    assert (view["policy"], view["algorithm"], view["step"]) == (RICH.id, "ucb", 50)
    applied = [pulled for step, pulled in enumerate(run.drawn, 1) if step % 17]
    for place, name in enumerate(run.mixer.names):
        arm = view["arms"][name]
        assert arm["pulls"] == sum(pulled.count(place) for pulled in applied)
        assert arm["tokens"] == 128 * arm["pulls"]
        assert arm["floor"] <= arm["probability"] <= arm["cap"]
    assert view["zombies"] == {}
    early = Run(make_mixer(RICH, ARMS, 0)).to(5).mixer.view(context=128)
    assert early["phase"] == {"name": "warm-up", "steps": 5, "of": 20}
    assert early["arms"]["books"]["ema_loss"] is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda r: r.pop("arms"),
        lambda r: r.pop("step"),
        lambda r: r["arms"]["web"].pop("count"),
        lambda r: r["arms"]["web"].update(weight=None),
        lambda r: r["arms"]["web"].update(count=0.0),
        lambda r: r["probabilities"].pop(),
        lambda r: r["probabilities"][0].update(web=0.9),
        lambda r: r.update(zombies=[{"name": "x"}]),
        lambda r: r.update(policy="000000000000"),
    ],
)
def test_a_damaged_record_is_refused(damage: Any) -> None:
    record = Run(make_mixer(RICH, ARMS, 0)).to(30).mixer.record()
    damage(record)
    with pytest.raises(DataError):
        restore(RICH, ARMS, record)


def test_a_policy_that_cannot_be_obeyed_makes_no_mixer() -> None:
    with pytest.raises(ConfigError, match="caps sum to"):
        make_mixer(Policy(caps={arm.name: 0.1 for arm in ARMS}), ARMS, 0)


def test_a_source_earns_only_in_its_first_epoch() -> None:
    mixer = make_mixer(Policy(algorithm="ucb"), ARMS, 0)
    for step in range(1, 61):
        pulled = [0, 1, 2] * 8
        losses = [9 - step * 0.05 + slot % 2 for slot in range(24)]
        mixer.observe(step, pulled, losses, [step * 8 / 100, 1.0, 0.5])
    rewards = [arm["rewards"] for arm in mixer.record()["arms"].values()]
    assert rewards[0] < rewards[1] / 2  # 100 windows: read through after step 12
    assert rewards[1] == pytest.approx(rewards[2], rel=0.02)


def test_a_source_that_was_read_often_is_pulled_less_and_never_lost() -> None:
    """Before a pivot too; where all were read as often, nothing changes."""
    mixer = make_mixer(Policy(algorithm="ucb", begins_after=100), ARMS, 100, [31.8, 1.0, 0.2])
    books, code, web = mixer.probabilities(101)
    assert code == web and books == pytest.approx(code * math.exp(-2))
    assert mixer.view(8)["arms"]["books"]["weight"] == pytest.approx(math.exp(-2) / 3)
    often = make_mixer(Policy(algorithm="ucb", begins_after=100), ARMS, 100, [31.8] * 3)
    assert often.probabilities(101) == pytest.approx([1 / 3] * 3)
    endless = make_mixer(Policy(algorithm="ucb", begins_after=100), ARMS, 100, [1e7, 1.0, 0.2])
    assert 0 < endless.probabilities(101)[0] < 1e-8
    plain = make_mixer(Policy(begins_after=100), ARMS, 100, [31.8, 1.0, 0.2])
    assert plain.probabilities(101) == pytest.approx([1 / 3] * 3)
