from __future__ import annotations

import json

from andread.rundir import commit
from andread.rundir.errors import MissingError
from andread.rundir.layout import RunDirectory


def test_the_list(andrectl, trained) -> None:
    result = andrectl("--run", trained.path, "checkpoints")
    assert result.exit_code == 0
    head, first, second = result.stdout.splitlines()
    assert head.split() == ["step", "bytes", "age", "reasons", "sha256"]
    assert first.split()[:2] == ["100", "8,060,936"] and "cadence" in second


def test_json(andrectl, trained) -> None:
    told = json.loads(andrectl("--run", trained.path, "checkpoints", "--json").stdout)
    assert told["schema"] == 1
    assert [row["step"] for row in told["checkpoints"]] == [100, 200]
    assert told["checkpoints"][0]["problem"] is None
    assert len(told["checkpoints"][0]["sha256"]) == 64


def test_pin_and_unpin(andrectl, trained) -> None:
    assert andrectl("--run", trained.path, "checkpoints", "--pin", 100).exit_code == 0
    assert commit.pinned(trained) == {100}
    line = ("checkpoints", "--unpin", 100, "--pin", 200)
    assert "pinned" in andrectl("--run", trained.path, *line).stdout
    assert commit.pinned(trained) == {200}


def test_only_what_exists_can_be_pinned(andrectl, trained) -> None:
    for option in ("--pin", "--unpin"):
        result = andrectl("--run", trained.path, "checkpoints", "--pin", 100, option, 150)
        assert result.exit_code == 66
        assert "100, 200" in result.stderr
    assert commit.pinned(trained) == set()


def test_retention_that_is_quicker_than_the_pin_leaves_none(andrectl, trained, monkeypatch) -> None:
    real = commit.pin

    def late(run: RunDirectory, step: int) -> None:
        commit.prune(run, step)
        real(run, step)

    monkeypatch.setattr("andread.rundir.commit.pin", late)
    result = andrectl("--run", trained.path, "checkpoints", "--pin", 100)
    assert result.exit_code == MissingError.exit_code
    assert "there is no checkpoint of step 100" in result.stderr
    assert commit.pinned(trained) == set()


def test_a_pin_that_has_outlived_its_checkpoint_can_go(andrectl, trained) -> None:
    commit.pin(trained, 150)
    assert andrectl("--run", trained.path, "checkpoints", "--unpin", 150).exit_code == 0
    assert commit.pinned(trained) == set()


def test_what_is_wrong_with_one_is_said(andrectl, trained) -> None:
    trained.companion(100).unlink()
    trained.checkpoint(200).write_bytes(b"short")
    trained.checkpoint(300).symlink_to("/nowhere")
    (trained.path / "step_000050.bin.rejected").touch()
    result = andrectl("--run", trained.path, "checkpoints")
    assert result.exit_code == 0
    assert "no companion" in result.stdout and "cut off in its header" in result.stdout
    assert "set aside as invalid: step_000050.bin.rejected" in result.stderr


def test_a_new_run_has_none(andrectl, run) -> None:
    result = andrectl("--run", run.path, "checkpoints")
    assert result.exit_code == 0
    assert not result.stdout and "andrectl start" in result.stderr
