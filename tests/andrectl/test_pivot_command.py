"""`andrectl pivot`: what it reads, what it refuses before it touches anything, and its steps.

The daemon is played by a function: it says what it starts under and records one step.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from andread.rundir import commit, companion, events, files, history, samples
from andread.rundir.companion import Companion
from andread.rundir.errors import UsageError
from andread.rundir.history import LossHistory
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import Policy, Warmup, policy_at, read_policies, write_policies
from andread.rundir.run_toml import read_settings
from andrectl import awaiting, change, supervisor
from andrectl.change import Change

N = 5


def contents(run: RunDirectory) -> dict[str, bytes]:
    """Return every file of the run but its locks, which anyone may open."""
    paths = (path for path in run.path.rglob("*") if path.is_file())
    return {
        str(path.relative_to(run.path)): path.read_bytes()
        for path in paths
        if not path.name.endswith(".lock")
    }


def record(run: RunDirectory, first: int, last: int, keep: int | None = None) -> None:
    """Append the entries of steps `first` to `last`; make the checkpoint of the last if asked."""
    if first == 1:
        losses = LossHistory.create(run.history)
    else:
        vouched = companion.read(run.companion(first - 1))
        losses, _ = LossHistory.resume(run.history, first - 1, vouched.history_length)
    for step in range(first, last + 1):
        losses.record({"step": step, "loss": 4.0, "pulls": {"books": 3, "code": 5}})
    if keep is not None:
        data = commit.checkpoint.pack_header(last, keep) + bytes(12 * keep)
        prefix = losses.prefix

        def vouch(digest: str) -> Companion:
            return Companion(
                step=last,
                n_params=keep,
                sha256=digest,
                history_length=prefix.length,
                history_sha256=prefix.sha256,
                policy="p",
                reasons=("stop",),
                t=1.0,
            )

        commit.commit(run, data, losses, vouch)
    losses.close()


@pytest.fixture
def still(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run that stands still after step 20, and a daemon that trains one step at a start."""
    record(run, 1, 20, keep=N)
    samples.write(run.samples, "old", [{"step": 20}])
    run.state.write_bytes(b'{"old": "state"}')
    monkeypatch.setattr("andrectl.planning.manifest.read_manifest", lambda _: Tokens())
    monkeypatch.setattr(supervisor, "start", lambda found, options: starts(found))
    return run


@dataclasses.dataclass
class Tokens:
    fingerprint: str = ""


def starts(run: RunDirectory, pulls: int = 0) -> dict[str, Any]:
    """Play a daemon that resumes, resets, trains one step, and is gone."""
    step = run.checkpoint_steps()[-1]
    vouched = companion.read(run.companion(step))
    now = policy_at(read_policies(run.policy), step + 1).id
    if samples.read(run.samples)["policy"] != now:
        samples.write(run.samples, now, [])
    told = {"checkpoint": run.checkpoint(step).name, "sha256": vouched.sha256, "policy": now}
    event = events.emit(run.events, "started", step=step, pulls=pulls, **told)
    record(run, step + 1, step + 1, keep=None)
    return event


# What a command line means.


def test_shares_inline_repeated_and_from_files(tmp_path: Path) -> None:
    toml, table = tmp_path / "shares.toml", tmp_path / "shares.json"
    toml.write_text("code = 0.25\nbooks = 1\n")
    table.write_text('{"floors": {"code": 0.1}, "caps": {"code": 0.9}}')
    assert change.shares("caps", ["code=0.3, web = 0.5", "code=0.4"]) == {"code": 0.4, "web": 0.5}
    assert change.shares("caps", [str(toml)]) == {"code": 0.25, "books": 1.0}
    assert change.shares("floors", [str(table)]) == {"code": 0.1}
    assert change.shares("caps", [str(table), "web=0.2"]) == {"code": 0.9, "web": 0.2}


@pytest.mark.parametrize(
    ("text", "code"),
    [("code=much", 64), ("code=", 64), ("missing.toml", 66)],
)
def test_shares_that_are_none(andrectl, still, text: str, code: int) -> None:
    assert andrectl("--run", still.path, "pivot", "--caps", text).exit_code == code


@pytest.mark.parametrize("content", ["code", '["code"]', '{"code": "0.3"}', '{"code": true}'])
def test_files_that_hold_no_shares(andrectl, still, tmp_path: Path, content: str) -> None:
    path = tmp_path / "shares.json"
    path.write_text(content)
    assert andrectl("--run", still.path, "pivot", "--caps", path).exit_code == 78


def test_values_are_toml_or_text() -> None:
    given = ["optimizer.lr=3e-4", "warmup.sources=['a']", "warmup.again=true", "x=plain text"]
    assert change.values(given) == {
        "optimizer.lr": 3e-4,
        "warmup.sources": ["a"],
        "warmup.again": True,
        "x": "plain text",
    }
    with pytest.raises(UsageError):
        change.values(["optimizer.lr"])


def test_given_values_change_and_the_rest_stays(run) -> None:
    settings = read_settings(run.settings)
    base = Policy(caps={"code": 0.6, "books": 0.7}, floors={"code": 0.1}, max_epochs=4.0)
    new = Change(caps={"code": 0.5}, values={"optimizer.lr": 1e-4}).of(base, settings, 50)
    assert new.caps == {"code": 0.5, "books": 0.7} and new.floors == {"code": 0.1}
    assert new.overrides == {"optimizer.lr": 1e-4} and new.max_epochs == 4.0
    assert new.begins_after == 50 and new.algorithm == base.algorithm
    back = Change(values={"optimizer.lr": settings.optimizer.lr}).of(new, settings, 60)
    assert back.overrides == {}
    assert Change(reset=True, floors={"books": 0.2}).of(base, settings, 50).floors == {"books": 0.2}
    assert Change(reset=True, floors={"books": 0.2}).of(base, settings, 50).caps == {}
    assert Change(caps={"code": 1.0}).of(base, settings, 50).caps == {"books": 0.7}


def test_what_was_said_of_a_source_that_is_gone_is_dropped(run) -> None:
    settings = read_settings(run.settings)
    warmup = Warmup(steps=90, sources=("books", "wiki"))
    base = Policy(caps={"wiki": 0.2, "code": 0.6}, floors={"wiki": 0.1}, warmup=warmup)
    new = Change(floors={"books": 0.2}).of(base, settings, 50)
    assert (new.caps, new.floors) == ({"code": 0.6}, {"books": 0.2})
    assert new.warmup.sources == ("books",)


def test_a_fixed_mix_takes_weights_and_leaves_without_them(run) -> None:
    settings = read_settings(run.settings)
    weights = {"books": 1.0, "code": 3.0}
    fixed = Change(algorithm="fixed", weights=weights).of(Policy(), settings, 5)
    assert fixed.weights == weights
    assert Change(algorithm="ucb").of(fixed, settings, 6).weights == {}


def test_a_warm_up_goes_on_to_where_it_would_have_ended(run) -> None:
    settings = read_settings(run.settings)
    warmup = Warmup(steps=100, sources=("books",), again=True)
    base = Policy(begins_after=50, warmup=warmup)
    new = Change(caps={"code": 0.5}).of(base, settings, 80)
    assert base.warmup_end == new.warmup_end == 150
    assert not Change(caps={"code": 0.5}).of(Policy(warmup=warmup), settings, 200).warming(201)
    again = Change(values={"warmup.again": True}).of(
        Policy(warmup=dataclasses.replace(warmup, again=False)), settings, 200
    )
    assert again.warmup_end == 300


# What is refused before anything is touched.

REFUSED = [
    (["--caps", "cod=0.3"], 78, 'did you mean "code"'),
    (["--caps", "code=0.3", "--floors", "code=0.4"], 78, "leave no share"),
    (["--caps", "code=0.3,books=0.3"], 78, "sum to"),
    (["--floors", "code=0.7,books=0.7"], 78, "more than 1"),
    (["--caps", "code=1.5"], 78, "from 0 to 1"),
    (["--caps", "code=nan"], 78, "finite"),
    (["--policy", "fixed"], 78, "needs a weight"),
    (["--weights", "code=1,books=1"], 78, "would ignore them"),
    (["--policy", "uniform"], 64, "nothing would change"),
    (["--caps", "code=1"], 64, "nothing would change"),
    (["--set", "optimizer.lr=-1"], 78, "greater than 0"),
    (["--set", "model.width=64"], 78, "may not change in mid-run"),
    (["--set", "run.seed=2"], 78, "may not change in mid-run"),
    (["--set", "optimizer.batch=2.5"], 78, "whole number"),
    (["--set", "warmup.steps=900"], 78, "warm-up"),
    ([], 64, "nothing to change is given"),
    (["--resume"], 64, "no pivot is in flight"),
    (["--abort"], 64, "no pivot is in flight"),
    (["--abort", "--caps", "code=0.3"], 64, "stand alone"),
]


@pytest.mark.parametrize(("arguments", "code", "told"), REFUSED)
def test_refused_before_anything_is_touched(andrectl, still, arguments, code, told) -> None:
    before = contents(still)
    result = andrectl("--run", still.path, "pivot", *arguments)
    assert (result.exit_code, told in result.stderr) == (code, True), result.stderr
    assert contents(still) == before


def test_a_run_toml_that_has_drifted_is_refused(andrectl, still) -> None:
    told = companion.read(still.companion(20))
    drifted = dataclasses.replace(told, trajectory={"run.seed": 99})
    companion.write(still.companion(20), drifted)
    before = contents(still)
    result = andrectl("--run", still.path, "pivot", "--caps", "code=0.3")
    assert result.exit_code == 78 and "run.seed: 99 became 1" in result.stderr
    assert contents(still) == before


def test_a_run_that_has_not_begun_is_refused(andrectl, run) -> None:
    assert andrectl("--run", run.path, "pivot", "--caps", "code=0.3").exit_code == 64


def test_a_dry_run_shows_plan_diff_and_refusals_and_touches_nothing(andrectl, still) -> None:
    before = contents(still)
    line = ["--run", still.path, "pivot", "--dry-run", "--caps", "code=0.3"]
    told = andrectl(*line, "--set", "optimizer.lr=1e-5")
    assert told.exit_code == 0
    assert "5/6 replace policy.json: the commit" in told.stdout
    assert "caps.code: none → 0.3" in told.stdout
    lr = read_settings(still.settings).optimizer.lr
    assert f"optimizer.lr: {lr:.12g} → 1e-05" in told.stdout
    shown = json.loads(andrectl(*line, "--json").stdout)
    assert shown["policy"]["caps"] == {"code": 0.3} and shown["refusals"] == []
    bad = andrectl(*line, "--floors", "code=0.5", "--json")
    assert bad.exit_code == 78 and "leave no share" in json.loads(bad.stdout)["refusals"][0]
    assert contents(still) == before


def test_two_pivots_at_once(andrectl, still, python) -> None:
    code = (
        "import sys; from pathlib import Path; from andread.rundir.lock import RunLock\n"
        "from andrectl.cli import main\n"
        "lock = RunLock.acquire(Path(sys.argv[1]) / '.pivot.lock')\n"
        "import subprocess\n"
        "line = [sys.executable, '-m', 'andrectl', '--run', sys.argv[1], 'pivot', *sys.argv[2:]]\n"
        "sys.exit(subprocess.run(line).returncode)\n"
    )
    before = contents(still)
    for arguments in (["--caps", "code=0.3"], ["--resume"], ["--abort"]):
        told = python("-c", code, still.path, *arguments)
        assert told.returncode == 75 and "another pivot is in flight" in told.stderr
    assert contents(still) == before


# The six steps.


def test_a_stopped_run_is_pivoted(andrectl, still) -> None:
    before = contents(still)
    result = andrectl("--run", still.path, "pivot", "--caps", "code=0.3", "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["step"] == 20 and told["proof"]["problems"] == []
    assert told["proof"]["first_step"]["step"] == 21
    folder = still.archive / told["archive"]
    for name in (".samples.json", ".state.json", "policy.json"):
        assert (folder / name).read_bytes() == before[name]
        assert told["files"][name]["sha256"] == hashlib.sha256(before[name]).hexdigest()
    for name in ("step_000020.bin", "step_000020.json"):
        assert contents(still)[name] == before[name]
    old, new = read_policies(still.policy)
    assert (new.begins_after, new.caps) == (20, {"code": 0.3})
    assert told["policy"] == {"old": old.id, "new": new.id}
    assert [entry["step"] for entry in history.read(still.history)] == list(range(1, 22))
    assert still.pin(20).exists() and not still.pivot.exists()
    (event,) = [e for e in events.read(still.events) if e["event"] == "pivot"]
    assert (event["step"], event["policy"], event["before"]) == (20, new.id, old.id)
    (row,) = json.loads(andrectl("--run", still.path, "pivots", "--json").stdout)["pivots"]
    assert (row["step"], row["archive"], row["proof"]) == (20, "pivot_000020", "holds")
    assert "caps.code: none → 0.3" in andrectl("--run", still.path, "pivots").stdout


def test_a_history_past_its_checkpoint_is_trained_up_first(
    andrectl, still, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(still, 21, 24)

    def start(run: RunDirectory, options: object) -> dict[str, Any]:
        if len(read_policies(run.policy)) > 1:
            return starts(run)
        record(run, 21, 24)  # the replay
        length = companion.read(run.companion(20)).history_length
        losses, _ = LossHistory.resume(run.history, 20, length)
        losses.close()
        run.history.write_bytes(b"[\n]\n")
        record(run, 1, 26, keep=N)
        return {}

    monkeypatch.setattr(supervisor, "start", start)
    result = andrectl("--run", still.path, "pivot", "--caps", "code=0.3", "--json")
    assert "goes past step_000020.bin: starting the run under its old policy" in result.stderr
    assert json.loads(result.stdout)["step"] == 26


def test_what_the_daemon_does_not_do_is_told(andrectl, still, monkeypatch) -> None:
    monkeypatch.setattr(supervisor, "start", lambda run, options: starts(run, pulls=7))
    result = andrectl("--run", still.path, "pivot", "--caps", "code=0.3")
    assert result.exit_code == 65 and "its bandit was not fresh" in result.stderr
    (row,) = json.loads(andrectl("--run", still.path, "pivots", "--json").stdout)["pivots"]
    assert row["proof"] == "its bandit was not fresh"


def test_a_fall_back_before_the_pivot_is_told(andrectl, still, monkeypatch) -> None:
    def start(run: RunDirectory, options: object) -> dict[str, Any]:
        record(run, 21, 21)
        run.checkpoint(20).rename(run.path / "step_000020.bin.rejected")
        return events.emit(run.events, "started", step=10, pulls=9, policy="old", sha256="b")

    monkeypatch.setattr(supervisor, "start", start)
    result = andrectl("--run", still.path, "pivot", "--caps", "code=0.3")
    assert result.exit_code == 65
    for told in ("it resumed from step 10, not 20", "another checkpoint", "weights changed"):
        assert told in result.stderr
    assert not still.pivot.exists()


def test_a_full_disk_takes_the_pivot_back(andrectl, still, monkeypatch) -> None:
    before = contents(still)
    real = files.replace

    def full(path: Path, data: bytes) -> None:
        if path.parent.parent == still.archive and path.name == "policy.json":
            raise OSError(28, "No space left on device", str(path))
        real(path, data)

    monkeypatch.setattr(files, "replace", full)
    result = andrectl("--run", still.path, "pivot", "--caps", "code=0.3")
    assert result.exit_code == 74 and "the pivot is off" in result.stderr
    assert contents(still) == before


def test_a_policy_json_that_changed_meanwhile_is_not_overwritten(andrectl, still, monkeypatch):
    other = Policy(begins_after=7, floors={"books": 0.5})

    def interfere(*_: object) -> str:
        write_policies(still.policy, [Policy(), other])
        return ""

    monkeypatch.setattr("andrectl.boundary.history_problem", interfere)
    result = andrectl("--run", still.path, "pivot", "--caps", "code=0.3")
    assert result.exit_code == 65 and "policy.json has changed" in result.stderr
    assert read_policies(still.policy)[-1] == other and not still.pivot.exists()


def test_a_daemon_that_is_stopped_while_it_starts_leaves_the_proof_open(
    andrectl, still, monkeypatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "start", lambda run, options: {"event": "stopped"})
        result = andrectl("--run", still.path, "pivot", "--caps", "code=0.3")
    assert result.exit_code == 3 and "ended before it trained" in result.stderr
    assert still.pivot.exists() and len(read_policies(still.policy)) == 2
    assert andrectl("--run", still.path, "pivot", "--resume").exit_code == 0


def test_without_a_first_step_the_pivot_stays_pending(andrectl, still, monkeypatch) -> None:
    def dies(run: RunDirectory, options: object) -> dict[str, Any]:
        samples.write(run.samples, "new", [])  # it has come as far as to reset them
        raise awaiting.DaemonEnded("the daemon was killed", "", 71)

    before = contents(still)
    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "start", dies)
        result = andrectl("--run", still.path, "pivot", "--caps", "code=0.3")
    assert result.exit_code == 71 and "the pivot is committed" in result.stderr
    assert "committed after step 20" in andrectl("--run", still.path, "status").stdout
    refused = andrectl("--run", still.path, "pivot", "--caps", "code=0.4")
    assert refused.exit_code == 75 and "--resume" in refused.stderr
    assert andrectl("--run", still.path, "pivot", "--abort").exit_code == 0
    left = contents(still)
    left.pop(".events.json")
    assert left == before

    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "start", dies)
        andrectl("--run", still.path, "pivot", "--caps", "code=0.3")
    resumed = andrectl("--run", still.path, "pivot", "--resume", "--json")
    assert json.loads(resumed.stdout)["proof"]["problems"] == []
    assert not still.pivot.exists()


def test_a_daemon_that_died_before_its_first_step_is_started_again(
    andrectl, still, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = []

    def start(run: RunDirectory, options: object) -> dict[str, Any]:
        lives.append(options)
        event = starts(run)
        if len(lives) == 1:  # what it did not live to record
            length = companion.read(run.companion(20)).history_length
            run.history.write_bytes(run.history.read_bytes()[:length] + b"\n]\n")
        return event

    monkeypatch.setattr(supervisor, "start", start)
    result = andrectl("--run", still.path, "pivot", "--caps", "code=0.3")
    assert result.exit_code == 3 and "ended before step 21 was recorded" in result.stderr
    assert "--resume" in result.stderr and len(lives) == 1
    resumed = andrectl("--run", still.path, "pivot", "--resume", "--json")
    assert json.loads(resumed.stdout)["proof"]["problems"] == [] and len(lives) == 2
    assert [entry["step"] for entry in history.read(still.history)] == list(range(1, 22))


def test_no_abort_once_a_step_has_run_under_the_new_policy(andrectl, still, monkeypatch) -> None:
    def stops_short(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("andrectl.proving.proof", stops_short)
        assert andrectl("--run", still.path, "pivot", "--caps", "code=0.3").exit_code == 130
    before = contents(still)
    refused = andrectl("--run", still.path, "pivot", "--abort")
    assert refused.exit_code == 64 and "has run under the new policy" in refused.stderr
    assert contents(still) == before
    assert andrectl("--run", still.path, "pivot", "--resume").exit_code == 0
