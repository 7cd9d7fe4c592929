"""policy.json: ids, order, strict reading; and whether a policy can be obeyed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from andread.rundir.errors import ConfigError, DataError, MissingError
from andread.rundir.feasibility import check, obeyed
from andread.rundir.policy import (
    LIMIT,
    BanditSettings,
    Policy,
    Warmup,
    policy_at,
    policy_from,
    read_policies,
    write_policies,
)
from andread.rundir.tables import setting

SOURCES = ("books", "code", "web")

LIST = [
    Policy(caps={"web": 0.5}),
    Policy(
        begins_after=700,
        algorithm="ucb",
        caps={"web": 1},
        floors={"books": 0.1},
        warmup=Warmup(steps=50, sources=("books", "code"), again=True),
        bandit=BanditSettings(temperature=1.25),
        max_epochs=4,
        overrides={"optimizer.lr": 1e-4, "audit.prompts": ["Once", "नमस्ते"]},
    ),
]


def test_a_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_policies(tmp_path / "policy.json", LIST)
    assert read_policies(tmp_path / "policy.json") == LIST
    assert [p.id for p in read_policies(tmp_path / "policy.json")] == [p.id for p in LIST]


def test_the_id_is_pinned() -> None:
    """A change of this value orphans every policy.json there is."""
    policy = Policy(caps={"web": 0.5}, bandit=BanditSettings(200, 50, 3, 0.97, 0.5, 2, 0.05))
    assert policy.id == "d4704b6c0eb2"
    rich = dataclasses.replace(
        LIST[1], bandit=BanditSettings(200, 50, 3, 0.97, 0.5, temperature=1.25, smoothing=0.05)
    )
    assert rich.id == "7c5c964b05b9"


@dataclass(frozen=True)
class LaterBandit(BanditSettings):
    momentum: float = setting(0.0, added=True)


@dataclass(frozen=True)
class LaterPolicy(Policy):
    bandit: BanditSettings = LaterBandit()
    targets: dict[str, float] = setting(None, added=True)  # noqa: RUF009


def test_a_key_that_joins_later_keeps_the_ids_of_policies_that_do_without() -> None:
    caps = {"web": 0.5}
    assert LaterPolicy(caps=caps).id == Policy(caps=caps).id
    with_it = LaterPolicy(caps=caps, targets={"web": 1.0})
    deep = LaterPolicy(caps=caps, bandit=LaterBandit(momentum=0.5))
    assert len({Policy(caps=caps).id, with_it.id, deep.id}) == 3
    assert with_it.content()["targets"] == {"web": 1.0}


def test_a_default_that_changes_later_changes_no_policy_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    write_policies(path, [Policy()])
    (table,) = orjson.loads(path.read_bytes())
    assert set(table["bandit"]) == {field.name for field in dataclasses.fields(BanditSettings)}
    assert set(table) == {"id", *(field.name for field in dataclasses.fields(Policy))}


def test_the_id_follows_the_content_and_the_beginning() -> None:
    first, second = Policy(caps={"web": 0.5}), Policy(caps={"web": 0.6})
    back = Policy(begins_after=200, caps={"web": 0.5})
    assert len({first.id, second.id, back.id}) == 3
    assert first.id == Policy(caps={"web": 0.5}).id
    assert Policy(caps={"a": 1, "b": 0.5}).id == Policy(caps={"b": 0.5, "a": 1.0}).id
    assert len(first.id) == 12


def test_each_step_has_the_last_policy_that_begins_before_it() -> None:
    assert policy_at(LIST, 1) is LIST[0]
    assert policy_at(LIST, 700) is LIST[0]
    assert policy_at(LIST, 701) is LIST[1]
    with pytest.raises(DataError):
        policy_at(LIST, 0)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingError):
        read_policies(tmp_path / "policy.json")


@pytest.mark.parametrize("table", [{"capz": {}}, {"caps": {"a": "1"}}, {"warmup": 3}])
def test_a_wrong_table_is_a_configuration_error(table: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        policy_from(table)


def test_every_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    write_policies(path, LIST)
    good = orjson.loads(path.read_bytes())

    def damaged(**changes: Any) -> list[dict[str, Any]]:
        return [good[0], {**good[1], **changes}]

    cases: list[Any] = [
        [],
        {},
        [1],
        good[::-1],
        [good[0], good[0]],
        damaged(id="0" * 12),
        damaged(id=None),
        damaged(begins_after=701),
        damaged(caps={"web": 0.9}),
        damaged(colour="red"),
        damaged(overrides={"optimizer.lr": {"deep": 1}}),
    ]
    for case in cases:
        path.write_bytes(orjson.dumps(case))
        with pytest.raises(DataError):
            read_policies(path)
    for data in (b"", b"[", orjson.dumps(good)[:-2], b"[" * 5000, b"\xff", b" " * (LIMIT + 1)):
        path.write_bytes(data)
        with pytest.raises(DataError):
            read_policies(path)


def test_a_list_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    huge = Policy(begins_after=1, overrides={"audit.prompts": ["x" * LIMIT]})
    for policies in ([], LIST[::-1], [LIST[0], LIST[0]], [Policy(), huge]):
        with pytest.raises(DataError):
            write_policies(path, policies)
    assert not path.exists()


def test_the_warmup_counts_from_step_0_and_is_repeated_only_when_asked() -> None:
    warmup = Warmup(steps=100, sources=("web", "books"))
    assert Policy(warmup=warmup).live(100, SOURCES) == ("books", "web")
    assert Policy(warmup=warmup).live(101, SOURCES) == SOURCES
    pivot = Policy(begins_after=40, warmup=warmup)
    assert pivot.live(100, SOURCES) == ("books", "web")
    assert pivot.live(101, SOURCES) == SOURCES
    again = Policy(begins_after=500, warmup=Warmup(100, ("web",), again=True))
    assert again.live(600, SOURCES) == ("web",)
    assert again.live(601, SOURCES) == SOURCES


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Policy(caps={"web": 0.2}, floors={"web": 0.3}), r"floor of web \(0.3\).*cap \(0.2\)"),
        (
            Policy(floors={"web": 0.7, "code": 0.5}),
            r"floors sum to 1.2 \(code 0.5 \+ web 0.7\), more than 1",
        ),
        (Policy(caps=dict.fromkeys(SOURCES, 0.333333)), r"caps sum to 0.999999 .*less than 1"),
        (Policy(caps={"web": 1.5}), "cap of web is 1.5"),
        (Policy(floors={"web": -0.1}), "floor of web is -0.1"),
        (Policy(floors={"web": float("nan")}), "floor of web is nan"),
        (Policy(caps={"wep": 0.5}), r'caps: unknown source "wep" \(did you mean "web"\?\)'),
        (Policy(floors={"repo-docstrings": 0.1}), "unknown source"),
        (Policy(algorithm="fixed", weights={"books": 1, "web": 1}), "needs a weight for code"),
        (Policy(algorithm="fixed", weights=dict.fromkeys(SOURCES, 0)), "every weight is 0"),
        (Policy(algorithm="fixed", weights=dict.fromkeys(SOURCES, -1)), "weight of books is -1"),
        (Policy(weights={"web": 1}), "would ignore"),
        (Policy(warmup=Warmup(10)), "10 steps and 0 sources"),
        (Policy(warmup=Warmup(10, ("wab",))), 'the warm-up: unknown source "wab"'),
        (
            Policy(caps={"web": 0.4, "code": 0.5}, warmup=Warmup(10, ("web", "code"))),
            r"in the warm-up, the caps sum to 0.9 \(",
        ),
        (
            Policy(floors={"web": 0.9, "code": 0.5}, warmup=Warmup(10, ("web",))),
            "after the warm-up, the floors sum to 1.4",
        ),
    ],
)
def test_what_cannot_be_obeyed_is_refused(policy: Policy, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check(policy, SOURCES)
    assert caught.value.hint


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(caps=dict.fromkeys(SOURCES, 1 / 3)),
        Policy(floors=dict.fromkeys(SOURCES, 1 / 3), caps={"web": 1 / 3}),
        Policy(algorithm="fixed", weights={"books": 0, "code": 0, "web": 7}),
        # The warm-up's floors count only in the warm-up, and only for its own sources.
        Policy(floors={"web": 0.6, "code": 0.4}, warmup=Warmup(10, ("web",))),
        # A warm-up that is over by the time of a pivot is no longer checked.
        Policy(begins_after=10, caps={"web": 0.4}, warmup=Warmup(10, ("web",))),
    ],
)
def test_what_can_be_obeyed_passes(policy: Policy) -> None:
    check(policy, SOURCES)


def test_shares_that_sum_to_one_but_for_rounding_pass() -> None:
    for n in range(1, 200):
        names = [f"s{i}" for i in range(n)]
        check(Policy(caps=dict.fromkeys(names, 1 / n)), names)
        check(Policy(floors=dict.fromkeys(names, 1 / n)), names)
    check(Policy(caps=dict.fromkeys("abcdefghij", 0.1)), "abcdefghij")


BOUND = Policy(
    algorithm="fixed",
    weights={"books": 1, "code": 0, "web": 2},
    caps={"web": 0.7, "books": 0.5},
    floors={"web": 0.1, "code": 0.2},
    warmup=Warmup(steps=50, sources=("web", "books")),
)


def test_what_a_policy_says_of_a_source_that_is_gone_is_left_out() -> None:
    assert obeyed(BOUND, SOURCES) == (BOUND, ())
    left, gone = obeyed(BOUND, ("books", "code"), step=50)
    assert gone == ("web",)
    assert (left.caps, left.floors, left.weights) == (
        {"books": 0.5},
        {"code": 0.2},
        {"books": 1, "code": 0},
    )
    assert left.warmup == Warmup(50, ("books",))
    assert BOUND.named() == set(SOURCES)


@pytest.mark.parametrize(
    ("sources", "step", "message"),
    [
        (("books",), 50, r"names code, web, no longer.*the caps sum to 0.5, less than 1"),
        (("code",), 50, "every weight is 0"),
        (("code", "new"), 50, "needs a weight for new"),
        (("code", "books"), 49, "in the warm-up, the caps sum to 0.5"),
        (("code",), 0, "in the warm-up, the caps sum to 0, less than 1"),
    ],
)
def test_what_is_left_must_be_able_to_do_without(
    sources: tuple[str, ...], step: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        obeyed(BOUND, sources, step)
    assert "pivot" in caught.value.hint


def test_a_policy_whose_sources_all_live_is_refused_as_by_the_check() -> None:
    for policy in (Policy(caps=dict.fromkeys(SOURCES, 0.2)), Policy(warmup=Warmup(10))):
        with pytest.raises(ConfigError) as strict:
            check(policy, SOURCES)
        with pytest.raises(ConfigError) as lenient:
            obeyed(policy, SOURCES)
        assert lenient.value.message == strict.value.message
