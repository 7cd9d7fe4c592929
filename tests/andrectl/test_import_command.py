from __future__ import annotations

import hashlib
import json
import struct

import pytest

from andread.rundir import companion, events, history, recovery
from andread.rundir.lock import RunLock
from andread.rundir.run_toml import read_settings

N_PARAMS = 671_744


@pytest.fixture
def bare(tmp_path, image):
    path = tmp_path / "model.bin"
    path.write_bytes(image(5000))
    return path


def test_a_bare_checkpoint_becomes_the_first_of_a_run(andrectl, run, bare) -> None:
    result = andrectl("--run", run.path, "import", bare, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["step"] == 5000
    assert told["sha256"] == hashlib.sha256(bare.read_bytes()).hexdigest()
    assert run.checkpoint(5000).read_bytes() == bare.read_bytes()
    found = companion.read(run.companion(5000))
    assert (found.reasons, found.curriculum, found.policy) == (("import",), {}, "")
    assert found.trajectory == read_settings(run.settings).trajectory()
    assert "raise it" in result.stderr  # [run] steps = 300 lies behind it
    assert [event["event"] for event in events.read(run.events)] == ["checkpoint"]
    status = andrectl("--run", run.path, "status", "--json")
    assert status.exit_code == 3 and json.loads(status.stdout)["state"] == "never started"


def test_what_is_imported_can_be_resumed_from(andrectl, run, bare) -> None:
    andrectl("--run", run.path, "import", bare)
    found = recovery.newest_valid(run, N_PARAMS, recovery.verified_reader)
    assert found is not None and found.companion.step == 5000
    writer, cut = recovery.open_history(run, found)
    writer.record({"step": 5001, "loss": 3.0})
    writer.close()
    assert cut == 0
    assert [entry["step"] for entry in history.read(run.history)] == [5001]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "cut off in its header"),
        (struct.pack("<ii", 5, N_PARAMS) + bytes(100), "cut off in region weights"),
        (struct.pack("<ii", -1, N_PARAMS) + bytes(12 * N_PARAMS), "negative step"),
        (struct.pack("<ii", 5, 0), "claims 0 parameters"),
        (struct.pack("<ii", 5, N_PARAMS) + bytes(12 * N_PARAMS + 1), "too long"),
        (struct.pack("<ii", 5, 10) + bytes(120), "10 parameters, the model of run.toml"),
    ],
)
def test_a_malformed_file_is_refused_and_leaves_nothing(
    andrectl, run, tmp_path, content: bytes, why: str
) -> None:
    path = tmp_path / "bad.bin"
    path.write_bytes(content)
    result = andrectl("--run", run.path, "import", path)
    assert result.exit_code == 65
    assert why in result.stderr
    assert not run.checkpoint_steps() and not run.history.exists()


def test_a_factory_s_model_takes_the_count_of_the_file(andrectl, run, tmp_path) -> None:
    toml = run.settings.read_text()
    run.settings.write_text(toml.replace("[model]", '[model]\nfactory = "package.module:make"'))
    path = tmp_path / "other.bin"
    path.write_bytes(struct.pack("<ii", 5, 10) + bytes(120))
    assert andrectl("--run", run.path, "import", path).exit_code == 0
    assert companion.read(run.companion(5)).n_params == 10


def test_a_run_with_a_past_is_left_alone(andrectl, trained, bare) -> None:
    recorded = trained.history.read_bytes()
    assert andrectl("--run", trained.path, "import", bare).exit_code == 73
    for step in (100, 200):
        trained.checkpoint(step).unlink()
    assert andrectl("--run", trained.path, "import", bare).exit_code == 73  # its history stands
    assert trained.history.read_bytes() == recorded and not trained.checkpoint_steps()


def test_an_import_cut_short_can_be_repeated(andrectl, run, bare, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("andread.rundir.disk.rename", _full)
        assert andrectl("--run", run.path, "import", bare).exit_code == 74
    assert not run.checkpoint_steps()
    assert andrectl("--run", run.path, "import", bare).exit_code == 0


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_missing_file_and_a_folder_are_told(andrectl, run, tmp_path) -> None:
    assert andrectl("--run", run.path, "import", tmp_path / "no.bin").exit_code == 66
    assert andrectl("--run", run.path, "import", tmp_path).exit_code == 65


def test_an_import_holds_the_lock(andrectl, run, bare, monkeypatch) -> None:
    held = []
    acquire = RunLock.acquire
    monkeypatch.setattr(RunLock, "acquire", lambda path: held.append(path) or acquire(path))
    assert andrectl("--run", run.path, "import", bare).exit_code == 0
    assert held == [run.lock]
