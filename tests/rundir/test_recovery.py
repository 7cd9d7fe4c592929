"""The newest valid checkpoint, why the newer ones are not, and never a silent start from zero."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from andread.rundir import companion, recovery
from andread.rundir.errors import AndreadError, DataError
from andread.rundir.layout import RunDirectory
from andread.rundir.recovery import Rejected, newest_valid, open_history, set_aside, verified_reader
from tests.rundir.helpers import (
    N_PARAMS,
    STRANGERS,
    build_run,
    entry,
    history_bytes,
    image,
    put_stranger,
    python,
    sha256,
    traced,
)


def recover(run: RunDirectory, accept: bool = False) -> recovery.Recovered:
    found = newest_valid(run, N_PARAMS, verified_reader, accept)
    assert found is not None
    return found


def everything(run: RunDirectory) -> dict[str, bytes]:
    return {item.name: item.read_bytes() for item in run.path.iterdir() if item.is_file()}


def test_newest_is_taken_and_its_history_goes_on(run: RunDirectory) -> None:
    before = everything(run)
    found = recover(run)
    assert (found.companion.step, found.rejected, found.history_fault) == (8, (), "")
    loss, cut = open_history(run, found)
    assert (loss.step, loss.last_step, cut) == (8, 10, 0)
    loss.close()
    assert everything(run) == before, "looking changes nothing"


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert newest_valid(run, N_PARAMS, verified_reader) is None
    run.history.write_bytes(b"[\n\n]\n")
    assert newest_valid(run, N_PARAMS, verified_reader) is None


def altered(table: dict[str, Any], change: dict[str, Any]) -> bytes:
    """Return a companion that says something else, its checksum right."""
    return json.dumps(companion.sealed(table | change)).encode()


def damage(run: RunDirectory, step: int, how: str) -> str:
    """Damage the checkpoint of `step`; return what must be said about it."""
    path, beside = run.checkpoint(step), run.companion(step)
    data, table = image(step), json.loads(beside.read_bytes())
    table.pop("checksum")
    head = struct.Struct("<ii")
    binaries: dict[str, tuple[bytes, str]] = {
        "empty": (b"", "cut off in its header (0 bytes)"),
        "header": (data[:7], "cut off in its header (7 bytes)"),
        "weights": (data[:20], "cut off in region weights"),
        "m": (data[:40], "cut off in region m"),
        "v": (data[:-1], "cut off in region v"),
        "long": (data + b"\0", "is too long"),
        "negative step": (head.pack(-1, N_PARAMS) + data[8:], "negative step, -1"),
        "negative count": (head.pack(step, -1) + data[8:], "claims -1 parameters"),
        "absurd count": (head.pack(step, 2**31 - 1) + data[8:], "2,147,483,647 parameters"),
        "other step": (image(3), "says it is of step 3"),
        "other model": (image(step, 7), "has 7 parameters, the model has 5"),
        "bit": (data[:-1] + bytes([data[-1] ^ 1]), "has SHA-256"),
    }
    companions: dict[str, tuple[bytes, str]] = {
        "torn companion": (beside.read_bytes()[:-9], "damaged companion"),
        "deep companion": (b'{"a":' * 99_999, "damaged companion"),
        "companion of zeros": (bytes(600), "damaged companion"),
        "companion's step": (altered(table, {"step": 3}), "companion is of step 3"),
        "companion's model": (altered(table, {"n_params": 6}), "and 6 parameters"),
        "companion's hash": (altered(table, {"sha256": "0" * 64}), "says 000000"),
        "history": (altered(table, {"history_length": 10**6}), "shorter than"),
    }
    if how in binaries:
        content, message = binaries[how]
        path.write_bytes(content)
    elif how == "no companion":
        beside.unlink()
        message = "has no companion"
    else:
        content, message = companions[how]
        beside.write_bytes(content)
    return message


DAMAGES = [
    *("empty", "header", "weights", "m", "v", "long", "negative step", "negative count"),
    *("absurd count", "other step", "other model", "bit", "no companion", "torn companion"),
    *("deep companion", "companion of zeros", "companion's step", "companion's model"),
    *("companion's hash", "history"),
]


@pytest.mark.parametrize("how", DAMAGES)
def test_next_valid_one_is_taken_and_the_reason_told(run: RunDirectory, how: str) -> None:
    message = damage(run, 8, how)
    found = recover(run)
    assert found.companion.step == 4
    assert [item.step for item in found.rejected] == [8]
    assert message in found.rejected[0].reason
    assert "step_000008" in found.rejected[0].reason
    loss, _ = open_history(run, found)
    assert (loss.step, loss.last_step) == (4, 10), "steps 5 to 10 are witnesses"
    loss.close()


def test_reasons_all_differ(tmp_path: Path, run: RunDirectory) -> None:
    reasons = set()
    for how in DAMAGES:
        whole = everything(run)
        damage(run, 8, how)
        reasons.add(recover(run).rejected[0].reason)
        for name, data in whole.items():
            (run.path / name).write_bytes(data)
    torn = {r for r in reasons if "damaged companion" in r}
    assert len(reasons) >= len(DAMAGES) - 2, torn


@pytest.mark.parametrize("kind", STRANGERS)
@pytest.mark.parametrize("which", ["checkpoint", "companion"])
def test_no_regular_file_is_passed_over(run: RunDirectory, which: str, kind: str) -> None:
    put_stranger(getattr(run, which)(8), kind)
    found = recover(run)
    assert found.companion.step == 4
    assert "not a regular file" in found.rejected[0].reason
    set_aside(run, found.rejected[0])
    again = recover(run)
    assert (again.companion.step, again.rejected) == (4, ())
    assert not os.path.lexists(run.checkpoint(8))
    assert not os.path.lexists(run.companion(8))


@pytest.mark.parametrize("kind", [*STRANGERS, "absent"])
def test_no_regular_history_is_refused(run: RunDirectory, kind: str) -> None:
    if kind == "absent":
        run.history.unlink()
    else:
        put_stranger(run.history, kind)
    with pytest.raises(DataError):
        newest_valid(run, N_PARAMS, verified_reader)
    with pytest.raises(DataError):
        newest_valid(run, N_PARAMS, verified_reader, accept_history=True)


def test_rejected_one_never_wins_again(run: RunDirectory) -> None:
    data = run.checkpoint(8).read_bytes()
    damage(run, 8, "bit")
    found = recover(run)
    set_aside(run, found.rejected[0])
    assert run.checkpoint_steps() == [0, 4]
    assert (run.path / "step_000008.bin.rejected").read_bytes() != data
    assert (run.path / "step_000008.json.rejected").exists()
    set_aside(run, found.rejected[0])  # a second time changes nothing
    set_aside(run, Rejected(99, "never there"))
    assert recover(run).rejected == ()


def test_all_invalid_is_refused_with_every_reason(run: RunDirectory) -> None:
    for step, how in ((0, "long"), (4, "no companion"), (8, "bit")):
        damage(run, step, how)
    before = everything(run)
    with pytest.raises(DataError) as caught:
        newest_valid(run, N_PARAMS, verified_reader)
    for part in ("too long", "no companion", "SHA-256"):
        assert part in caught.value.message
    assert "never restarts from zero" in caught.value.hint
    assert everything(run) == before


def test_history_without_checkpoints_is_refused(run: RunDirectory) -> None:
    for step in (0, 4, 8):
        run.checkpoint(step).unlink()
    with pytest.raises(DataError, match="there is none"):
        newest_valid(run, N_PARAMS, verified_reader)


def test_stray_names_stop_no_start(run: RunDirectory) -> None:
    for name in ("step_0000008.bin", "step_000008 (copy).bin", "step_٠٠٠٠٠٩.bin", "step_9.bin"):
        (run.path / name).write_bytes(b"x")
    assert recover(run).companion.step == 8


# ---------------------------------------------------------------- the history


def test_history_shorter_than_vouched_falls_back(run: RunDirectory) -> None:
    whole = run.history.read_bytes()
    vouched = companion.read(run.companion(8)).history_length
    run.history.write_bytes(whole[: vouched - 1])
    found = recover(run)
    assert found.companion.step == 4
    assert "shorter than" in found.rejected[0].reason
    loss, _ = open_history(run, found)
    for step in range(5, 11):
        loss.record(entry(step))
    loss.close()
    assert run.history.read_bytes() == whole


def test_history_as_long_as_vouched_to_the_byte(run: RunDirectory) -> None:
    whole = run.history.read_bytes()
    run.history.write_bytes(whole[: companion.read(run.companion(8)).history_length])
    found = recover(run)
    assert found.companion.step == 8
    loss, _ = open_history(run, found)
    loss.close()
    assert run.history.read_bytes() == history_bytes(map(entry, range(1, 9)))


def test_changed_record_is_refused_and_accepted_only_by_name(run: RunDirectory) -> None:
    entries = [entry(step) for step in range(1, 11)]
    entries[2]["loss"] = 0.0  # somebody made step 3 look good
    changed = history_bytes(entries)
    run.history.write_bytes(changed.ljust(len(run.history.read_bytes())))
    before = everything(run)
    with pytest.raises(DataError, match="was changed after it was written") as caught:
        newest_valid(run, N_PARAMS, verified_reader)
    assert "--accept-history" in caught.value.hint
    assert everything(run) == before
    found = recover(run, accept=True)
    assert found.companion.step == 8
    assert "step_000008.bin vouches for" in found.history_fault
    loss, _ = open_history(run, found)
    assert (loss.step, loss.last_step) == (8, 10)
    loss.record(entry(9))
    loss.record(entry(10))
    loss.record(entry(11))
    loss.close()
    final = run.history.read_bytes()
    assert final.startswith(changed[:-3]), "nothing is edited"
    assert json.loads(final)[-1] == entry(11)
    assert loss.prefix.sha256 == sha256(final[:-3])


def test_changed_record_without_the_step_cannot_be_accepted(run: RunDirectory) -> None:
    run.history.write_bytes(history_bytes(map(entry, range(1, 8))).ljust(10_000))
    before = everything(run)
    with pytest.raises(DataError) as caught:
        newest_valid(run, N_PARAMS, verified_reader, accept_history=True)
    assert "no entry of step 8" in caught.value.message
    assert "--accept-history" not in caught.value.hint
    assert everything(run) == before


# ---------------------------------------------------------------- trouble is no verdict


@pytest.mark.parametrize("which", ["checkpoint", "companion", "history"])
@pytest.mark.parametrize("error", ["EIO", "ENOMEM", "EACCES"])
def test_trouble_with_reading_rejects_nothing(run: RunDirectory, which: str, error: str) -> None:
    path = run.history if which == "history" else getattr(run, which)(8)
    script = """
import sys
from pathlib import Path
from andread.rundir.errors import AndreadError
from andread.rundir.layout import RunDirectory
from andread.rundir.recovery import newest_valid, verified_reader
try:
    newest_valid(RunDirectory(sys.argv[1]), 5, verified_reader)
except AndreadError as error:
    print(type(error).__name__)
"""
    call = "openat" if error == "EACCES" else "read,pread64,preadv,preadv2"
    options = ["-P", str(path), "-e", f"trace={call}", "-e", f"inject={call}:error={error}"]
    done, text = traced(script, run.path, trace=run.path.parent / "trace", options=options)
    assert "INJECTED" in text
    expected = {"EIO": "StorageError", "ENOMEM": "BusyError", "EACCES": "AccessError"}[error]
    assert done.stdout.strip() == expected, done.stderr


def test_run_directory_that_may_not_be_read(run: RunDirectory) -> None:
    script = """
import os, sys
from andread.rundir.errors import AndreadError
from andread.rundir.layout import RunDirectory
from andread.rundir.recovery import newest_valid, verified_reader
os.setuid(65534)
try:
    newest_valid(RunDirectory(sys.argv[1]), 5, verified_reader)
except AndreadError as error:
    print(type(error).__name__)
"""
    run.path.chmod(0o700)
    done = python(script, run.path)
    assert done.stdout.strip() == "AccessError", done.stderr


def test_run_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AndreadError, match="No such file"):
        newest_valid(RunDirectory(tmp_path / "absent"), N_PARAMS, verified_reader)


def test_read_only_disk_can_still_be_verified(
    tmpfs: Callable[[str], Path], read_only: Callable[[Path], None]
) -> None:
    disk = tmpfs("1m")
    run = build_run(disk / "run", (0, 4), 6)
    damage(run, 4, "bit")
    read_only(disk)
    found = recover(run)
    assert found.companion.step == 0
    with pytest.raises(OSError, match="Read-only"):
        set_aside(run, found.rejected[0])


def test_reader_gets_the_companion_and_may_put_the_bytes_where_they_belong(
    run: RunDirectory,
) -> None:
    seen: list[int] = []

    def reader(path: Path, found: companion.Companion) -> str:
        seen.append(found.step)
        assert path == run.checkpoint(found.step)
        return sha256(path.read_bytes()) if found.step < 8 else "0" * 64

    found = newest_valid(run, N_PARAMS, reader)
    assert found is not None
    assert (seen, found.companion.step) == ([8, 4], 4)
