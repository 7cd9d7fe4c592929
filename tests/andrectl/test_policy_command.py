"""`andrectl policy`: where each arm stands, and policies checked without touching a run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from andread.rundir import files
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import BanditSettings, Policy, Warmup, write_policies
from andrectl.render import bounded_bar

POLICY = Policy(
    algorithm="ucb",
    caps={"books": 0.6, "wiki": 0.3},
    floors={"code": 0.4},
    bandit=BanditSettings(temperature=1.0),
)
ARMS = {
    "books": {"pulls": 75, "epochs": 0.5, "ema_reward": 0.2, "probability": 0.6, "cap": 0.6},
    "code": {"pulls": 25, "epochs": 0.1, "probability": 0.4, "floor": 0.4},
    "wiki": {"pulls": 900, "weight": 1.546},
}


def put(run: RunDirectory, policy: Policy, state: dict | None = None) -> None:
    write_policies(run.policy, [policy])
    if state is not None:
        files.replace_json(run.state, {"policy": policy.id, "arms": ARMS, **state})


def told(andrectl, run: RunDirectory, *arguments: object) -> dict:
    result = andrectl("--run", run.path, "policy", "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def digest(directory: Path) -> str:
    names = sorted(path for path in directory.rglob("*") if path.is_file())
    parts = [f"{path} {path.stat().st_mtime_ns} ".encode() + path.read_bytes() for path in names]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_each_arm_stands_against_its_bounds(andrectl, trained) -> None:
    put(trained, POLICY, {})
    view = told(andrectl, trained)
    assert view["schema"] == 1 and view["next_step"] == 251
    assert view["policy"]["id"] == POLICY.id and view["policy"]["caps"] == POLICY.caps
    assert [(a["name"], a["floor"], a["cap"], a["standing"]) for a in view["sources"]] == [
        ("books", 0.0, 0.6, "at its cap"),
        ("code", 0.4, 1.0, "at its floor"),
    ]
    assert view["zombies"] == [{"name": "wiki", "pulls": 900, "weight": 1.546}]
    assert (view["ignored"], view["problem"]) == (["wiki"], None)
    text = andrectl("--run", trained.path, "policy").stdout
    for shown in ("ucb", "temperature 1", "at its cap", "zombie: no source", "█]", "60.0%"):
        assert shown in text
    assert "! wiki is named by the policy" in text


def test_a_warmup_and_an_epoch_limit_show(andrectl, run) -> None:
    put(run, Policy(max_epochs=0.4, warmup=Warmup(50, ("books",))), {"phase": {"name": "warm-up"}})
    view = told(andrectl, run)
    assert view["warming"] is True
    assert [arm["standing"] for arm in view["sources"]] == [
        "sunk: read often enough",
        "waits for the end of the warm-up",
    ]
    assert "warm-up of 50 steps on books" in andrectl("--run", run.path, "policy").stdout


def test_what_the_next_start_will_refuse_is_told(andrectl, run) -> None:
    put(run, Policy(caps={"books": 0.2, "code": 0.3}))
    view = told(andrectl, run)
    assert "caps sum to 0.5" in view["problem"]
    assert "will be refused" in andrectl("--run", run.path, "policy").stdout


def test_a_state_of_an_earlier_policy_is_not_shown(andrectl, run) -> None:
    put(run, POLICY, {"policy": "f" * 12, "zombies": {"old": {"pulls": 3}}})
    view = told(andrectl, run)
    assert view["zombies"] == [] and all(arm["pulls"] == 0 for arm in view["sources"])


@pytest.mark.parametrize(
    "text",
    [
        "[caps]\nbooks = 0.7\n[floors]\ncode = 0.3\nbooks = 0.7\n",
        '{"caps": {"books": 0.7}, "floors": {"code": 0.3, "books": 0.7}}',
        '{"id": "x", "begins_after": 9, "floors": {"code": 0.3, "books": 0.7},'
        ' "caps": {"books": 0.7}}',
    ],
)
def test_a_file_that_can_be_obeyed(andrectl, trained, tmp_path: Path, text: str) -> None:
    put(trained, POLICY, {})
    path = tmp_path / "asked"
    path.write_text(text)
    before = digest(trained.path)
    view = told(andrectl, trained, "--check", path)
    assert view["feasible"] is True and view["algorithm"] == "ucb"
    assert view["changes"] == {"caps": {"books": 0.7}, "floors": {"code": 0.3, "books": 0.7}}
    assert view["sources"][0] == {"name": "books", "floor": 0.7, "cap": 0.7}
    result = andrectl("--run", trained.path, "policy", "--check", path)
    assert "can be obeyed" in result.stdout and "100.0%" in result.stdout
    assert digest(trained.path) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[caps]\nbooks = 0.2\ncode = 0.45", "caps sum to 0.65 (books 0.2 + code 0.45), less"),
        ("[floors]\nbooks = 0.5\ncode = 0.6", "floors sum to 1.1"),
        ("[floors]\nbooks = 0.9", "floor of books (0.9)"),  # against the cap in force
        ("[caps]\nbook = 0.9", 'unknown source "book" (did you mean "books"?)'),
        ("[caps]\nbooks = 1.5", "cap of books is 1.5"),
        ("[caps]\nbooks = -0.5", "cap of books is -0.5"),
        ("[caps]\nbooks = 'much'", "expected a number"),
        ("[cups]\nbooks = 0.5", 'unknown key "cups" (did you mean "caps"?)'),
        ("books = 0.5", "shares of sources stand in a table"),
        ("algorithm = 'best'", "one of uniform"),
        ("algorithm = 'fixed'", "needs a weight for"),
        ("[weights]\nbooks = 1", "would ignore"),
        ("caps", "neither a table of JSON nor of TOML"),
        ('{"caps": ', "neither a table of JSON nor of TOML"),
        ("[bandit]\ntemperature = 0", "greater than 0"),
    ],
)
def test_a_file_that_cannot_be_obeyed(
    andrectl, trained, tmp_path: Path, text: str, said: str
) -> None:
    put(trained, POLICY, {})
    path = tmp_path / "asked.toml"
    path.write_text(text)
    before = digest(trained.path)
    result = andrectl("--run", trained.path, "policy", "--check", path)
    assert result.exit_code == 78 and said in result.stderr, result.stderr
    assert "hint: " in result.stderr and not result.stdout
    assert digest(trained.path) == before


def test_the_bar_shows_the_bounds() -> None:
    assert bounded_bar(0.5, 0.0, 1.0, 8) == "████····"
    assert bounded_bar(0.5, 0.25, 0.75, 8) == "██[█··]·"
    assert bounded_bar(0.0, 1.0, 1.0, 8) == "·······["
