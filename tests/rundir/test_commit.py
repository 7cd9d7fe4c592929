"""A checkpoint is there whole, with all it needs, or not at all; and what retention lets go."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andread.rundir import commit, companion, files
from andread.rundir.history import LossHistory
from andread.rundir.layout import RunDirectory
from andread.rundir.recovery import newest_valid, open_history, verified_reader
from tests.rundir.helpers import (
    N_PARAMS,
    STRANGERS,
    build_run,
    descriptors,
    entry,
    fill,
    history_bytes,
    image,
    put_stranger,
    sha256,
    temporaries,
    traced,
    vouch_for,
)

COMMIT_STEP_5 = """
import sys
from andread.rundir import commit
from andread.rundir.layout import RunDirectory
from andread.rundir.recovery import newest_valid, open_history, verified_reader
from tests.rundir.helpers import entry, image, vouch_for
run = RunDirectory(sys.argv[1])
found = newest_valid(run, 5, verified_reader)
loss, _ = open_history(run, found)
loss.record(entry(5))
try:
    commit.commit(run, image(5), loss, vouch_for(loss))
    print("done", flush=True)
except OSError as error:
    print(error.errno, flush=True)
    if len(sys.argv) > 2:  # the next boundary tries again
        loss.record(entry(6))
        commit.commit(run, image(6), loss, vouch_for(loss))
        print("healed", flush=True)
"""
IN_ORDER = [
    ("pwrite64", 1),  # the entry of step 5
    ("fallocate", 1),
    ("pwrite64", 2),
    ("fsync", 1),  # .loss.json
    ("pwrite64", 3),  # the companion
    ("ftruncate", 1),
    ("fsync", 2),
    ("rename", 1),
    ("fsync", 3),
    ("ftruncate", 2),  # the .bin
    ("fsync", 4),
    ("rename", 2),
    ("fsync", 5),
]
CALLS = "pwrite64,ftruncate,fsync,rename,fallocate,unlink"


@pytest.fixture
def fresh(tmp_path: Path) -> RunDirectory:
    """Return a run whose newest checkpoint is its last entry, step 4."""
    return build_run(tmp_path / "run", (0, 4), 4)


def test_commit_order_as_the_kernel_sees_it(tmp_path: Path, fresh: RunDirectory) -> None:
    options = ["-e", f"trace={CALLS}"]
    done, text = traced(COMMIT_STEP_5, fresh.path, trace=tmp_path / "trace", options=options)
    assert done.stdout == "done\n", done.stderr
    seen = []
    for line in text.splitlines():
        if (call := re.match(r"\d+ +(\w+)\(", line)) and str(fresh.path) in line:
            targets = re.findall(rf'{re.escape(str(fresh.path))}([^">]*)[">]', line)
            names = [re.sub(r"\.tmp-\w+", ".tmp", name).lstrip("/") or "." for name in targets]
            seen.append(" ".join([call[1], *names]))
    assert seen == [
        "pwrite64 .loss.json",
        "fallocate step_000005.bin.tmp",
        "pwrite64 step_000005.bin.tmp",
        "fsync .loss.json",
        "pwrite64 step_000005.json.tmp",
        "ftruncate step_000005.json.tmp",
        "fsync step_000005.json.tmp",
        "rename step_000005.json.tmp step_000005.json",
        "fsync .",
        "ftruncate step_000005.bin.tmp",
        "fsync step_000005.bin.tmp",
        "rename step_000005.bin.tmp step_000005.bin",
        "fsync .",
    ]


def test_what_is_committed(fresh: RunDirectory) -> None:
    vouched_length = companion.read(fresh.companion(4)).history_length
    history, _ = LossHistory.resume(fresh.history, 4, vouched_length)
    history.record(entry(5))
    held = descriptors()
    whole = image(5)
    made = commit.commit(fresh, whole, history, vouch_for(history, reasons=("signal", "pivot")))
    assert fresh.checkpoint(5).read_bytes() == whole
    assert made.sha256 == sha256(whole)
    assert companion.read(fresh.companion(5)) == made
    assert made.reasons == ("signal", "pivot")
    vouched = fresh.history.read_bytes()[: made.history_length]
    assert sha256(vouched) == made.history_sha256
    assert vouched + b"\n]\n" == history_bytes(map(entry, range(1, 6)))
    assert temporaries(fresh.path) == []
    assert descriptors() == held
    history.close()


@pytest.mark.parametrize("place", range(len(IN_ORDER)))
def test_killed_at_any_call_the_run_resumes(
    tmp_path: Path, fresh: RunDirectory, place: int
) -> None:
    call, nth = IN_ORDER[place]
    options = ["-e", f"trace={CALLS}", "-e", f"inject={call}:signal=KILL:when={nth}"]
    done, _ = traced(COMMIT_STEP_5, fresh.path, trace=tmp_path / "trace", options=options)
    assert done.returncode != 0 and done.stdout == "", f"there is no {call} {nth}"
    found = newest_valid(fresh, N_PARAMS, verified_reader)
    assert found is not None and found.rejected == (), "nothing under a final name is damaged"
    assert found.companion.step == (5 if fresh.checkpoint(5).exists() else 4)
    assert place >= IN_ORDER.index(("rename", 2)) or not fresh.checkpoint(5).exists()
    if fresh.companion(5).exists():
        assert place >= IN_ORDER.index(("rename", 1)), "no companion before its bytes are durable"
    swept = commit.sweep(fresh)
    assert temporaries(fresh.path) == []
    if 2 <= place < len(IN_ORDER) - 2:
        assert swept
    assert {item.name for item in fresh.path.glob("step_*.json")} == {
        f"step_{step:06d}.json" for step in fresh.checkpoint_steps()
    }
    loss, _ = open_history(fresh, found)
    while loss.step < 8:
        loss.record(entry(loss.step + 1))
    if found.companion.step == 4:
        loss.sync()
    loss.close()
    assert fresh.history.read_bytes() == history_bytes(map(entry, range(1, 9)))


@pytest.mark.parametrize("place", range(1, len(IN_ORDER)))
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_any_call_that_fails_is_told_and_the_next_boundary_heals(
    tmp_path: Path, fresh: RunDirectory, place: int, error: str
) -> None:
    call, nth = IN_ORDER[place]
    options = ["-e", f"trace={CALLS}", "-e", f"inject={call}:error={error}:when={nth}"]
    done, text = traced(COMMIT_STEP_5, fresh.path, 1, trace=tmp_path / "trace", options=options)
    assert "INJECTED" in text
    number = {"EIO": "5", "ENOSPC": "28"}[error]
    assert done.stdout.split() == [number, "healed"], done.stderr
    assert temporaries(fresh.path) == []
    found = newest_valid(fresh, N_PARAMS, verified_reader)
    assert found is not None
    assert (found.companion.step, found.rejected) == (6, ())
    last = place == len(IN_ORDER) - 1
    assert fresh.checkpoint(5).exists() == last, "only the last directory fsync comes after it"
    assert fresh.history.read_bytes() == history_bytes(map(entry, range(1, 7)))


def test_full_disk_keeps_the_last_good_one(tmpfs: Callable[[str], Path]) -> None:
    disk = tmpfs("256k")
    run = build_run(disk / "run", (0, 4), 4)
    found = newest_valid(run, N_PARAMS, verified_reader)
    assert found is not None
    loss, _ = open_history(run, found)
    ballast = fill(disk)
    for step in range(5, 60):
        try:
            loss.record(entry(step))
        except OSError:
            continue
    whole = image(59, 5000)
    held = descriptors()
    with pytest.raises(OSError, match="No space"):
        commit.commit(run, whole, loss, vouch_for(loss, n_params=5000))
    assert descriptors() == held
    assert run.checkpoint_steps() == [0, 4]
    assert temporaries(run.path) == []
    kept = newest_valid(run, N_PARAMS, verified_reader)
    assert kept is not None and kept.companion.step == 4
    ballast.unlink()
    commit.commit(run, whole, loss, vouch_for(loss, n_params=5000))
    loss.close()
    healed = newest_valid(run, 5000, verified_reader)
    assert healed is not None and healed.companion.step == 59
    assert run.history.read_bytes() == history_bytes(map(entry, range(1, 60)))


def test_no_checkpoint_commits_while_the_history_cannot_be_written(
    tmpfs: Callable[[str], Path], tmp_path: Path
) -> None:
    """The history lies on a disk of its own that is full; the checkpoint's has all the space."""
    disk = tmpfs("16k")
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    run.history = disk / ".loss.json"
    loss = LossHistory.create(run.history)
    fill(disk)
    for step in range(1, 60):
        try:
            loss.record(entry(step))
        except OSError:
            continue
    with pytest.raises(OSError, match="No space"):
        commit.commit(run, image(59), loss, vouch_for(loss))
    assert list(run.path.iterdir()) == []
    loss.close()


def test_companion_that_cannot_be_made_leaves_nothing(fresh: RunDirectory) -> None:
    loss, _ = LossHistory.resume(
        fresh.history, 4, companion.read(fresh.companion(4)).history_length
    )
    loss.record(entry(5))

    def vouch(digest: str) -> companion.Companion:
        raise KeyError(digest)

    with pytest.raises(KeyError, match=sha256(image(5))):
        commit.commit(fresh, image(5), loss, vouch)
    assert fresh.checkpoint_steps() == [0, 4]
    assert temporaries(fresh.path) == []
    loss.close()


# ---------------------------------------------------------------- retention


@pytest.mark.parametrize(
    ("steps", "pins", "keep_last", "keep_every", "gone"),
    [
        ([], set(), 2, 0, []),
        ([0], set(), 2, 0, []),
        ([0, 100], set(), 2, 0, []),
        ([0, 100, 200], set(), 2, 0, [0]),
        ([0, 100, 200, 300, 400], set(), 2, 0, [0, 100, 200]),
        ([0, 100, 200, 300, 400], {100}, 2, 0, [0, 200]),
        ([0, 100, 200, 300, 400], {400}, 2, 0, [0, 100, 200]),  # a pin takes nobody's place
        ([0, 100, 200, 300, 400], set(), 2, 200, [100]),
        ([0, 100, 150, 200, 250, 300], {150}, 2, 200, [100]),
        ([300, 0, 200, 100], set(), 3, 0, [0]),
        ([999_999, 1_000_000, 1_000_001], set(), 2, 0, [999_999]),
        ([0, 100, 200], {7}, 3, 0, []),
    ],
)
def test_retention(
    steps: list[int], pins: set[int], keep_last: int, keep_every: int, gone: list[int]
) -> None:
    assert commit.expendable(steps, pins, keep_last, keep_every) == gone


@given(
    st.lists(st.integers(0, 500), unique=True),
    st.sets(st.integers(0, 500)),
    st.integers(2, 6),
    st.integers(0, 50),
)
def test_retention_keeps_what_it_promises(
    steps: list[int], pins: set[int], keep_last: int, keep_every: int
) -> None:
    gone = commit.expendable(steps, pins, keep_last, keep_every)
    kept = set(steps) - set(gone)
    assert gone == sorted(gone) and set(gone) <= set(steps)
    assert set(sorted(steps)[-keep_last:]) <= kept
    assert pins & set(steps) <= kept
    for step in gone:
        assert step not in pins
        assert not keep_every or step % keep_every
        assert sum(other > step for other in steps) >= keep_last


def test_pins(fresh: RunDirectory) -> None:
    assert commit.pinned(fresh) == set()
    commit.unpin(fresh, 4)
    commit.pin(fresh, 4)
    commit.pin(fresh, 4)
    commit.pin(fresh, 1_234_567)
    assert commit.pinned(fresh) == {4, 1_234_567}
    commit.unpin(fresh, 4)
    assert commit.pinned(fresh) == {1_234_567}


def test_strange_names_among_the_pins_are_passed_over(fresh: RunDirectory) -> None:
    commit.pin(fresh, 4)
    for name in ("²", "step_²²²²²²", "notes.txt", "step_000008.tmp-0a1b2c3d", "100", "step_٠٠٠٠٠٩"):
        (fresh.pins / name).touch()
    assert commit.pinned(fresh) == {4}


def test_prune_never_leaves_a_checkpoint_without_its_companion(
    tmp_path: Path, fresh: RunDirectory
) -> None:
    script = """
import sys
from andread.rundir import commit
from andread.rundir.layout import RunDirectory
commit.prune(RunDirectory(sys.argv[1]), 0)
"""
    options = ["-e", "trace=unlink,fsync"]
    done, text = traced(script, fresh.path, trace=tmp_path / "trace", options=options)
    assert done.returncode == 0, done.stderr
    ours = [line for line in text.splitlines() if str(fresh.path) in line]
    assert [re.search(r"(\w+)\(", line)[1] for line in ours] == (  # type: ignore[index]
        ["unlink", "fsync"] * 2
    )
    assert "step_000000.bin" in ours[0] and "step_000000.json" in ours[2]
    assert fresh.checkpoint_steps() == [4]
    assert not fresh.companion(0).exists()
    commit.prune(fresh, 0)


def test_a_checkpoint_that_was_pinned_in_the_meantime_stays(fresh: RunDirectory) -> None:
    before = fresh.checkpoint(0).read_bytes()
    commit.pin(fresh, 0)
    assert not commit.prune(fresh, 0)
    assert fresh.checkpoint(0).read_bytes() == before and fresh.companion(0).exists()
    commit.unpin(fresh, 0)
    assert commit.prune(fresh, 0)
    assert not fresh.checkpoint(0).exists() and not fresh.companion(0).exists()


def test_prune_killed_in_the_middle_is_swept(fresh: RunDirectory) -> None:
    files.remove(fresh.checkpoint(0))
    assert commit.sweep(fresh) == ["step_000000.json"]
    assert fresh.companion(4).exists()
    assert commit.sweep(fresh) == []


def test_sweep_leaves_what_is_not_ours(fresh: RunDirectory) -> None:
    (fresh.path / "step_by_step.json").write_text("a person's own notes")
    (fresh.path / "step_99.json").touch()
    (fresh.path / "step_000099.json.rejected").touch()
    (fresh.path / "step_000077.json").mkdir()
    (fresh.path / "x.tmp-0a1b2c3d").touch()
    fresh.requests.mkdir()
    (fresh.requests / "a.json.tmp-0a1b2c3d").touch()
    fresh.pins.mkdir()
    (fresh.pins / "step_000004.tmp-0a1b2c3d").touch()
    assert sorted(commit.sweep(fresh)) == [
        "a.json.tmp-0a1b2c3d",
        "step_000004.tmp-0a1b2c3d",
        "x.tmp-0a1b2c3d",
    ]
    assert (fresh.path / "step_by_step.json").exists()
    assert (fresh.path / "step_99.json").exists()
    assert (fresh.path / "step_000099.json.rejected").exists()


# ---------------------------------------------------------------- what counts


def test_only_valid_checkpoints_of_this_run_count(run: RunDirectory) -> None:
    assert commit.structurally_valid(run, N_PARAMS) == [0, 4, 8]
    assert commit.structurally_valid(run, N_PARAMS + 1) == []
    run.checkpoint(4).write_bytes(image(4)[:-1])
    run.companion(0).unlink()
    (run.path / "step_000009.bin").write_bytes(image(9))
    (run.path / "step_000010.bin").write_bytes(image(10))
    run.companion(10).write_bytes(run.companion(8).read_bytes())
    assert commit.structurally_valid(run, N_PARAMS) == [8]


@pytest.mark.parametrize("kind", STRANGERS)
def test_no_regular_file_counts(run: RunDirectory, kind: str) -> None:
    put_stranger(run.checkpoint(4), kind)
    put_stranger(run.companion(8), kind)
    assert commit.structurally_valid(run, N_PARAMS) == [0]
