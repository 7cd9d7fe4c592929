"""Verify finds every single planted fault and names it, and finds none where there is none."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from andread.rundir import companion, lineage, lock, pivot, policy, presence
from andread.rundir.layout import RunDirectory
from andrectl import checks, verifying
from andrectl.checks import Outcome

from .harness import copy_run, last_step, make_run, running, train
from .pivoting import EVERY, andrectl, finish, set_steps, spawn, until

Plant = Callable[[RunDirectory], None]


def found(run: RunDirectory, deep: bool = False) -> list[Outcome]:
    return checks.perform(verifying.checks(run, deep))


def named(run: RunDirectory, deep: bool = False) -> dict[str, str]:
    """Return the checks that have something to say, with what they say."""
    told: dict[str, str] = {}
    for outcome in found(run, deep):
        if outcome.standing in ("failed", "warning"):
            told[outcome.name] = told.get(outcome.name, "") + outcome.detail + "\n"
    return told


def failures(run: RunDirectory, deep: bool = False) -> list[str]:
    return [f"{o.name}: {o.detail}" for o in found(run, deep) if o.standing == "failed"]


@pytest.fixture(scope="module")
def scarred(at_30: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A healthy run, pivoted at step 30, killed in mid-interval and forked at 30; copy it."""
    run = copy_run(at_30, tmp_path_factory.mktemp("scarred") / "run")
    set_steps(run, 50)
    andrectl(run, "pivot", "--caps", "topics=0.6", "--policy", "ucb")
    finish(run)
    replaced(run.settings, f"checkpoint_every = {EVERY}", "checkpoint_every = 9999999")
    set_steps(run, 1_000_000)
    with running(run) as daemon:
        daemon.until_step(54)
        daemon.kill()
    replaced(run.settings, "checkpoint_every = 9999999", f"checkpoint_every = {EVERY}")
    set_steps(run, 200)
    (run.path / "daemon.stderr").unlink()
    assert newest(run) == 50
    fork = run.path.parent / "fork"
    andrectl(run, "fork", "--at", 30, "--into", fork, "--caps", "topics=0.3", "--seed-stream", 3)
    return run


@pytest.fixture
def hurt(scarred: RunDirectory, tmp_path: Path) -> RunDirectory:
    return copy_run(scarred, tmp_path / "hurt")


@pytest.mark.parametrize("deep", [False, True])
def test_a_run_that_was_pivoted_and_killed_and_forked_is_healthy(
    scarred: RunDirectory, deep: bool
) -> None:
    assert named(scarred, deep) == {}
    assert {o.standing for o in found(scarred, deep)} == ({"ok"} if deep else {"ok", "skipped"})


def test_other_healthy_runs(prepared, finished, tmp_path: Path) -> None:
    assert named(prepared, deep=True) == {}
    run = copy_run(finished, tmp_path / "finished")
    (run.path / "daemon.stderr").unlink()
    assert named(run, deep=True) == {}
    told = andrectl(run, "verify", "--deep", "--json")
    answer = json.loads(told)
    assert (answer["schema"], answer["passed"], answer["deep"]) == (1, True, True)
    assert [check["name"] for check in answer["checks"]][:2] == ["lock", "layout"]


def test_a_run_without_a_policy_gets_the_first_one(prepared: RunDirectory, tmp_path: Path) -> None:
    run = copy_run(prepared, tmp_path / "run")
    run.policy.unlink()
    assert "the first start makes one, ucb" in andrectl(run, "verify")
    set_steps(run, 3)
    train(run)
    assert policy.read_policies(run.policy) == [policy.FIRST]
    assert policy.FIRST.algorithm == "ucb"


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 1]))


def newest(run: RunDirectory) -> int:
    return run.checkpoint_steps()[-1]


def in_region(region: int) -> Plant:
    """Flip a byte in one of the five regions of the newest checkpoint."""

    def plant(run: RunDirectory) -> None:
        path = run.checkpoint(newest(run))
        _, n = struct.unpack("<ii", path.read_bytes()[:8])
        flip(path, [0, 4, 8 + 2 * n, 8 + 6 * n, 8 + 12 * n - 1][region])

    return plant


def cut(run: RunDirectory) -> None:
    path = run.checkpoint(newest(run))
    os.truncate(path, path.stat().st_size - 1)


def in_companion(run: RunDirectory) -> None:
    path = run.companion(newest(run))
    flip(path, path.read_bytes().index(b'"t"') + 5)


def swap(run: RunDirectory) -> None:
    shutil.copy(run.companion(10), run.companion(20))


def without_companion(run: RunDirectory) -> None:
    run.companion(20).unlink()


def of_another_run(run: RunDirectory) -> None:
    """Put a whole, honest companion of the same step there that is of other weights."""
    found = companion.read(run.companion(20))
    other = {**json.loads(run.companion(20).read_bytes()), "sha256": found.sha256[::-1]}
    other.pop("checksum")
    run.companion(20).write_bytes(orjson.dumps(companion.sealed(other)))


def lines(run: RunDirectory, change: Callable[[list[bytes]], None]) -> None:
    kept = run.history.read_bytes().split(b"\n")
    change(kept)
    run.history.write_bytes(b"\n".join(kept))


def tokens(run: RunDirectory) -> None:
    path = run.tokens("topics", "train")
    flip(path, path.stat().st_size // 2)


def shorter_tokens(run: RunDirectory) -> None:
    path = run.tokens("topics", "validation")
    os.truncate(path, path.stat().st_size - 2)


def other_data(run: RunDirectory) -> None:
    """Prepare one source anew from text that was changed."""
    from andread.curriculum.prepare import prepare
    from andread.rundir.run_toml import read_settings

    text = next((run.path / "text" / "license").iterdir())
    text.write_text(text.read_text(encoding="utf-8").upper(), encoding="utf-8")
    for path in run.data.glob("license.*"):
        path.unlink()
    prepare(run, read_settings(run.settings))


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text, (path, old)
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def edited_policy(run: RunDirectory) -> None:
    replaced(run.policy, '"topics": 0.6', '"topics": 0.7')


def edited_and_renamed_policy(run: RunDirectory) -> None:
    """Edit the policy of the pivot and give it the id of its new content."""
    first, second = policy.read_policies(run.policy)
    caps = {"topics": 0.7}
    changed = policy.policy_from({**second.content(), "caps": caps})
    policy.write_policies(run.policy, [first, changed])


def pivot_taken_out(run: RunDirectory) -> None:
    policy.write_policies(run.policy, policy.read_policies(run.policy)[:1])


def policy_of_the_future(run: RunDirectory) -> None:
    listed = policy.read_policies(run.policy)
    later = policy.policy_from({**listed[-1].content(), "begins_after": 5000})
    policy.write_policies(run.policy, [*listed, later])


def in_archive(name: str, old: str, new: str) -> Plant:
    def plant(run: RunDirectory) -> None:
        replaced(run.archive / pivot.archives(run)[0] / name, old, new)

    return plant


def archived_file_removed(run: RunDirectory) -> None:
    (run.archive / pivot.archives(run)[0] / ".samples.json").unlink()


def manifest_damaged(run: RunDirectory) -> None:
    (run.archive / pivot.archives(run)[0] / "manifest.json").write_text("{", encoding="utf-8")


def newest_audit(run: RunDirectory) -> None:
    content = orjson.loads(run.samples.read_bytes())
    content["audits"][-1]["mean"] += 1e-9
    run.samples.write_bytes(orjson.dumps(content))


def event_hash(run: RunDirectory) -> None:
    kept = run.events.read_text(encoding="utf-8").splitlines()
    place = next(i for i, line in enumerate(kept) if '"checkpoint"' in line and '"step":20' in line)
    event = orjson.loads(kept[place])
    kept[place] = orjson.dumps({**event, "sha256": event["sha256"][::-1]}).decode()
    run.events.write_text("\n".join(kept) + "\n", encoding="utf-8")


def source_removed(run: RunDirectory) -> None:
    text = run.settings.read_text(encoding="utf-8")
    at = text.index('[[source]]\nname = "license"')
    run.settings.write_text(text[:at], encoding="utf-8")


def told_entries_removed(run: RunDirectory) -> None:
    """Remove the step that the daemon had told of last, and one that it died before telling of."""
    told = presence.read(run.lock).step

    def cut(kept: list[bytes]) -> None:
        ends = next(i for i, line in enumerate(kept) if f'"step":{told},'.encode() in line)
        kept[ends - 1 : -2] = [kept[ends - 1].rstrip(b",")]

    lines(run, cut)


def record(run: RunDirectory) -> Path:
    """Return the record of the fork that was made of it."""
    (path,) = lineage.forks(run)
    return path


def in_record(old: str, new: str) -> Plant:
    return lambda run: replaced(record(run), old, new)


PLANTED: dict[str, tuple[Plant, str, bool]] = {
    "a byte of the step": (in_region(0), "headers", False),
    "a byte of n_params": (in_region(1), "headers", False),
    "a byte of the weights": (in_region(2), "hashes", True),
    "a byte of m": (in_region(3), "hashes", True),
    "a byte of v": (in_region(4), "hashes", True),
    "a checkpoint cut off": (cut, "headers", False),
    "a checkpoint that is a link": (
        lambda run: (
            run.checkpoint(20).rename(run.path.parent / "elsewhere"),
            run.checkpoint(20).symlink_to(run.path.parent / "elsewhere"),
        ),
        "layout",
        False,
    ),
    "a byte of a companion": (in_companion, "companions", False),
    "a swapped companion": (swap, "companions", False),
    "a companion gone": (without_companion, "companions", False),
    "a companion of other weights": (of_another_run, "hashes", True),
    "the same, by the events": (of_another_run, "events", False),
    "an entry removed": (lambda run: lines(run, lambda k: k.pop(12)), "history", False),
    "an entry doubled": (lambda run: lines(run, lambda k: k.insert(12, k[12])), "history", False),
    "entries exchanged": (
        lambda run: lines(run, lambda k: k.insert(12, k.pop(14))),
        "history",
        False,
    ),
    "the last entry removed": (told_entries_removed, "history", False),
    "an entry removed behind the newest checkpoint": (
        lambda run: lines(run, lambda k: k.pop(52)),
        "history",
        False,
    ),
    "an entry doubled behind it": (
        lambda run: lines(run, lambda k: k.insert(52, k[52])),
        "history",
        False,
    ),
    "a digit of a loss": (
        lambda run: flip(run.history, run.history.read_bytes().index(b'"loss":') + 9),
        "vouched",
        False,
    ),
    "the history gone": (lambda run: run.history.unlink(), "history", False),
    "a torn end": (
        lambda run: os.truncate(run.history, run.history.stat().st_size - 9),
        "history",
        False,
    ),
    "an edited policy": (edited_policy, "policies", False),
    "an edited policy with a fitting id": (edited_and_renamed_policy, "policies", False),
    "the same, by the archive": (edited_and_renamed_policy, "archives", False),
    "a policy taken out": (pivot_taken_out, "archives", False),
    "a policy of the future": (policy_of_the_future, "policies", False),
    "an edited archive": (in_archive(".state.json", '"step": 30', '"step": 31'), "archives", False),
    "an edited archived policy": (
        in_archive("policy.json", "uniform", "uniforn"),
        "archives",
        False,
    ),
    "an edited manifest": (
        in_archive("manifest.json", '"step": 30', '"step": 20'),
        "archives",
        False,
    ),
    "an archived file gone": (archived_file_removed, "archives", False),
    "a damaged manifest": (manifest_damaged, "archives", False),
    "a bracket of the samples": (lambda run: flip(run.samples, 0), "samples", False),
    "a figure of an audit": (newest_audit, "samples", False),
    "a digit of the state": (
        lambda run: flip(run.state, run.state.read_bytes().index(b'"pulls": ') + 9),
        "state",
        False,
    ),
    "a brace of an event": (lambda run: flip(run.events, 0), "events", False),
    "a hash in an event": (event_hash, "events", False),
    "a byte of the tokenizer": (lambda run: flip(run.tokenizer, 4000), "tokenizer", False),
    "a byte of the tokens": (tokens, "tokens", True),
    "tokens cut off": (shorter_tokens, "tokens", False),
    "a changed data file": (other_data, "tokens", False),
    "a manifest of tokens gone": (lambda run: run.manifest("topics").unlink(), "tokens", False),
    "a setting that drifted": (
        lambda run: replaced(run.settings, "lr = 3e-3", "lr = 4e-3"),
        "settings",
        False,
    ),
    "no run.toml to be read": (
        lambda run: replaced(run.settings, "[model]", "[modle]"),
        "settings",
        False,
    ),
    "a zombie": (source_removed, "zombies", False),
    "something left over": (
        lambda run: (run.path / "step_000060.bin.tmp-12345678").write_bytes(b"x"),
        "layout",
        False,
    ),
    "a stranger": (lambda run: (run.path / "notes.txt").write_text("x"), "layout", False),
    "a companion alone": (lambda run: run.checkpoint(10).unlink(), "layout", False),
    "a pin without its checkpoint": (
        lambda run: (run.pins / "step_000011").write_bytes(b""),
        "layout",
        False,
    ),
    "a damaged journal of a pivot": (
        lambda run: run.pivot.write_text("{}", encoding="utf-8"),
        "pivot",
        False,
    ),
    "a record of a fork cut off": (lambda run: os.truncate(record(run), 90), "forks", False),
    "a record of another step": (in_record('"step": 30', '"step": 20'), "forks", False),
    "a record of other weights": (in_record('"sha256": "', '"sha256": "0'), "forks", False),
    "a record of another history": (
        in_record('"history_length": ', '"history_length": 1'),
        "forks",
        False,
    ),
    "a record of another place": (in_record('"fork": "/', '"fork": "/else'), "forks", False),
    "a record under another id": (
        lambda run: record(run).rename(run.forks / "0123456789ab.json"),
        "forks",
        False,
    ),
    "a record of a fork gone": (lambda run: record(run).unlink(), "forks", False),
    "the pin of a fork gone": (lambda run: (run.pins / "step_000030").unlink(), "forks", False),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_every_planted_fault_is_found_and_named(hurt: RunDirectory, fault: str) -> None:
    plant, check, deep = PLANTED[fault]
    plant(hurt)
    told = named(hurt, deep)
    assert check in told, told
    hints = [o.hint for o in found(hurt, deep) if o.name == check and o.standing != "ok"]
    assert all(hints)


def test_the_region_is_named_where_a_pivot_recorded_it(hurt: RunDirectory) -> None:
    path = hurt.checkpoint(30)
    flip(path, path.stat().st_size // 2)
    assert "(region m)" in named(hurt, deep=True)["hashes"]


def differing(
    path: Path, look: Callable[[], bool], positions: list[int], same=orjson.loads
) -> None:
    """Flip each of the bytes in turn; `look` must fail unless the content stays the same."""
    before = path.read_bytes()
    content = same(before)
    missed = []
    for position in positions:
        changed = bytearray(before)
        changed[position] ^= 1
        path.write_bytes(changed)
        try:
            harmless = same(bytes(changed)) == content
        except ValueError:
            harmless = False
        if not harmless and not look():
            missed.append((position, bytes(changed[max(0, position - 20) : position + 20])))
    path.write_bytes(before)
    assert not missed


@pytest.mark.parametrize(
    ("name", "check"),
    [
        (".state.json", "state"),
        ("policy.json", "policies"),
        ("step_000050.json", "companions"),
        (".loss.json", "vouched"),
        ("tokenizer.json", "tokenizer"),
    ],
)
def test_no_byte_that_matters_goes_unseen(hurt: RunDirectory, name: str, check: str) -> None:
    path = hurt.path / name
    size = path.stat().st_size
    if check == "vouched":
        size = companion.read(hurt.companion(newest(hurt))).history_length
    positions = sorted(random.Random(1).sample(range(size), min(size, 150)))

    def looks() -> bool:
        look = next(each for each in verifying.checks(hurt, deep=False) if each.name == check)
        return any(outcome.standing == "failed" for outcome in checks.perform([look]))

    differing(path, looks, positions, same=bytes if check == "vouched" else orjson.loads)


def test_the_exit_code_and_the_text_tell(hurt: RunDirectory) -> None:
    said = andrectl(hurt, "verify")
    assert "✓ history" in said and "next: andrectl verify --deep" in said
    swap(hurt)
    said = andrectl(hurt, "verify", code=65)
    assert "✗ companions  step_000020.json is the companion of step 10" in said
    assert "hint: " in said
    answer = json.loads(andrectl(hurt, "verify", "--json", code=65))
    assert not answer["passed"] and answer["exit_code"] == 65
    replaced(hurt.settings, "lr = 3e-3", "lr = 4e-3")
    andrectl(hurt, "verify", code=78)


def test_a_damaged_newest_checkpoint_is_passed_over(hurt: RunDirectory) -> None:
    in_region(3)(hurt)
    told = named(hurt, deep=True)
    assert "a start takes step_000040.bin" in told["resume"]
    for path in hurt.path.glob("step_*.bin"):
        os.truncate(path, 100)
    resume = next(o for o in found(hurt) if o.name == "resume")
    assert resume.standing == "failed" and "no checkpoint" in resume.detail


def test_steps_computed_again(hurt: RunDirectory) -> None:
    before = {path.name: path.read_bytes() for path in hurt.path.iterdir() if path.is_file()}
    said = andrectl(hurt, "verify", "--replay", 10, "--from", 20)
    assert "steps 21…30 from step_000020.bin: bit for bit" in said
    assert "so is step_000030.bin" in said
    said = andrectl(hurt, "verify", "--replay", 13)
    assert f"steps {41}…{53} from step_000040.bin: bit for bit" in said
    assert before == {p.name: p.read_bytes() for p in hurt.path.iterdir() if p.is_file()}
    assert not list(hurt.path.parent.glob(".hurt.verify-*"))


def test_a_changed_record_behind_the_newest_checkpoint_shows_in_a_replay(hurt) -> None:
    end = companion.read(hurt.companion(newest(hurt))).history_length
    data = hurt.history.read_bytes()
    flip(hurt.history, data.index(b'"loss":', end) + 9)
    assert failures(hurt) == []
    said = andrectl(hurt, "verify", "--replay", 1, code=65)
    assert "✗ replay" in said and "at step 51 loss" in said


def test_a_replay_into_another_hash(hurt: RunDirectory) -> None:
    of_another_run(hurt)
    event_free = "should have SHA-256"
    assert event_free in andrectl(hurt, "verify", "--replay", 10, "--from", 10, code=65)


def test_what_a_replay_refuses(hurt: RunDirectory) -> None:
    assert "no checkpoint of step 25" in andrectl(
        hurt, "verify", "--replay", 5, "--from", 25, code=66
    )
    assert "--replay" in andrectl(hurt, "verify", "--from", 20, code=64)
    replaced(hurt.tokenizer, '"', "x")
    said = andrectl(hurt, "verify", "--replay", 5, code=65)
    assert "the daemon ended with 65" in said


def test_it_works_while_the_run_trains_and_prunes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1_000_000, every=2, keep=6)
    with running(run) as daemon:
        daemon.until_step(6)
        seen = set()
        while len(seen) <= 8:  # so that it has pruned meanwhile
            assert failures(run, deep=bool(len(seen) % 2)) == []
            seen.add(newest(run))
        said = andrectl(run, "verify", "--replay", 2, "--json")
        replay = json.loads(said)["checks"][-1]
        assert (replay["name"], replay["standing"]) == ("replay", "ok")
        assert daemon.process.poll() is None
        daemon.kill()
    assert failures(run, deep=True) == []


def test_verify_leaves_torch_and_the_lock_alone(scarred: RunDirectory, tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom andrectl.cli import main\n"
        f"try: main(['--run', {str(scarred.path)!r}, 'verify'])\n"
        "finally: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_replay_that_is_ended_leaves_nothing_behind(hurt: RunDirectory, number: int) -> None:
    process = spawn(hurt, "verify", "--replay", 50, "--from", 0)
    try:
        (copy,) = until(lambda: list(hurt.path.parent.glob(".hurt.verify-*/run/.lock")))
        pid = until(lambda: lock.holder(copy))
        process.send_signal(number)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.communicate()
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert not list(hurt.path.parent.glob(".hurt.verify-*"))
    assert named(hurt) == {}


def test_what_a_power_cut_may_leave_is_told_and_is_no_failure(hurt: RunDirectory) -> None:
    """A hole of zeros before entries that look good: the next start cuts there."""
    end = companion.read(hurt.companion(newest(hurt))).history_length
    with hurt.history.open("r+b") as stream:
        stream.seek(end + 2)
        stream.write(bytes(20))
    told = named(hurt)
    assert "torn from byte" in told["history"] and failures(hurt) == []
    recorded = last_step(hurt)
    with running(hurt) as daemon:
        daemon.until_step(recorded + 1)
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == 0
    (hurt.path / "daemon.stderr").unlink()
    assert named(hurt) == {}, "the start has cut it, and computed those steps again"


def test_a_run_that_was_imported_and_one_whose_state_is_gone(
    hurt: RunDirectory, prepared: RunDirectory, tmp_path: Path
) -> None:
    run = copy_run(prepared, tmp_path / "imported")
    andrectl(run, "import", hurt.checkpoint(40))
    assert named(run, deep=True) == {}
    set_steps(run, 50)
    with running(run) as daemon:
        assert daemon.wait() == 0
    (run.path / "daemon.stderr").unlink()
    assert named(run, deep=True) == {}
    run.state.unlink()
    run.samples.unlink()
    assert list(named(run)) == ["state"] and failures(run) == []


@pytest.fixture(scope="module")
def forked(scarred: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Its fork, trained to step 50 and forked there in turn; copy it."""
    run = copy_run(RunDirectory(scarred.path.parent / "fork"), tmp_path_factory.mktemp("f") / "run")
    set_steps(run, 50)
    train(run)
    (run.path / "daemon.stderr").unlink()
    andrectl(run, "fork", "--into", run.path.parent / "grandchild", "--set", "run.steps=60")
    return run


def test_forks_are_healthy_wherever_their_parents_are(
    scarred: RunDirectory, forked: RunDirectory, tmp_path: Path
) -> None:
    untrained = RunDirectory(scarred.path.parent / "fork")
    grandchild = RunDirectory(forked.path.parent / "grandchild")
    for run in (untrained, forked, grandchild):
        assert named(run, deep=True) == {}, run
    told = {outcome.name: outcome.detail for outcome in found(untrained)}
    assert told["lineage"] == f"a fork at step 30 of {scarred.path}"
    told = {outcome.name: outcome.detail for outcome in found(scarred)}
    assert (told["lineage"], told["forks"]) == (
        "the run is no fork",
        "1 fork on record, 1 there now",
    )
    said = andrectl(forked, "verify", "--deep", "--replay", 10)
    assert "steps 41…50 from step_000040.bin: bit for bit" in said

    parent = copy_run(untrained, tmp_path / "parent")
    andrectl(parent, "fork", "--into", tmp_path / "orphan")
    orphan = RunDirectory(tmp_path / "orphan")
    shutil.rmtree(parent.path)
    assert named(orphan, deep=True) == {}
    told = {outcome.name: outcome.detail for outcome in found(orphan)}
    assert "not there now, nor needed" in told["lineage"]
    set_steps(orphan, 40)
    train(orphan)
    (orphan.path / "daemon.stderr").unlink()
    assert named(orphan, deep=True) == {}
    shutil.rmtree(orphan.path)


def test_forks_that_are_gone_are_no_fault(hurt: RunDirectory, tmp_path: Path) -> None:
    andrectl(hurt, "fork", "--at", 0, "--into", tmp_path / "first", "--policy", "ucb")
    first = RunDirectory(tmp_path / "first")
    assert named(first, deep=True) == {}
    set_steps(first, 20)
    train(first)
    (first.path / "daemon.stderr").unlink()
    assert named(first, deep=True) == {}
    shutil.rmtree(tmp_path / "first")
    assert named(hurt) == {}
    andrectl(hurt, "checkpoints", "--unpin", 0)
    assert named(hurt) == {}, "nobody is left that it was pinned for"


LINEAGE: dict[str, Plant] = {
    "cut off": lambda run: os.truncate(run.lineage, 90),
    "a link": lambda run: (
        run.lineage.rename(run.path.parent / "elsewhere"),
        run.lineage.symlink_to(run.path.parent / "elsewhere"),
    ),
    "gone": lambda run: run.lineage.unlink(),
    "another id": lambda run: replaced(run.lineage, '"id": "', '"id": "0'),
    "another parent": lambda run: replaced(run.lineage, '"parent": "/', '"parent": "/else'),
    "another step": lambda run: replaced(run.lineage, '"step": 30', '"step": 40'),
    "other weights": lambda run: replaced(run.lineage, '"sha256": "', '"sha256": "0'),
    "another length": lambda run: replaced(run.lineage, '_length": ', '_length": 1'),
    "another history": lambda run: replaced(run.lineage, 'ry_sha256": "', 'ry_sha256": "0'),
    "another policy": lambda run: replaced(run.lineage, '"policy": "', '"policy": "0'),
    "other changes": lambda run: replaced(run.lineage, '"new": 0.3', '"new": 0.4'),
    "another history altogether": lambda run: flip(
        run.history, run.history.read_bytes().index(b'"loss":') + 9
    ),
}


@pytest.mark.parametrize("fault", LINEAGE)
def test_every_fault_of_a_lineage_is_found_and_named(
    forked: RunDirectory, tmp_path: Path, fault: str
) -> None:
    run = copy_run(forked, tmp_path / "run")
    LINEAGE[fault](run)
    assert "lineage" in named(run)
    assert all(o.hint for o in found(run) if o.name == "lineage")


def test_a_fork_of_an_imported_run_begins_where_that_began(
    hurt: RunDirectory, prepared: RunDirectory, tmp_path: Path
) -> None:
    run = copy_run(prepared, tmp_path / "imported")
    andrectl(run, "import", hurt.checkpoint(40))
    for step in (40, 50):
        set_steps(run, step)
        if step > 40:
            train(run)
            (run.path / "daemon.stderr").unlink()
        andrectl(run, "fork", "--into", tmp_path / f"fork{step}", "--set", "run.steps=60")
        fork = RunDirectory(tmp_path / f"fork{step}")
        assert named(fork, deep=True) == {}
        train(fork)
        (fork.path / "daemon.stderr").unlink()
        assert named(fork, deep=True) == {}
