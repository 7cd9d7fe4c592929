"""Names: what is a checkpoint of ours, and what merely looks like one."""

from __future__ import annotations

from pathlib import Path

import pytest

from andread.rundir.layout import RunDirectory, step_name


def test_names_are_those_of_the_format(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path))
    found = {
        run.checkpoint(100): "step_000100.bin",
        run.companion(100): "step_000100.json",
        run.checkpoint(1_234_567): "step_1234567.bin",
        run.history: ".loss.json",
        run.samples: ".samples.json",
        run.state: ".state.json",
        run.events: ".events.json",
        run.lock: ".lock",
        run.pivot_lock: ".pivot.lock",
        run.pivot: ".pivot.json",
        run.request("abc"): "requests/abc.json",
        run.pin(7): "pins/step_000007",
        run.tokens("code", "train"): "data/code.train.bin",
        run.manifest("code"): "data/code.json",
    }
    for path, name in found.items():
        assert path == tmp_path / name


def test_steps_are_sorted_as_numbers(tmp_path: Path) -> None:
    for step in (1_000_000, 999_999, 5, 0, 20_000_000):
        (tmp_path / f"{step_name(step)}.bin").touch()
    assert RunDirectory(tmp_path).checkpoint_steps() == [0, 5, 999_999, 1_000_000, 20_000_000]


@pytest.mark.parametrize(
    "name",
    [
        "step_00001.bin",
        "step_0000001.bin",  # seven digits with a zero in front: not the name of step 1
        "step_000001.bin.rejected",
        "step_000001.bin.tmp-0a1b2c3d",
        "step_000001.bin\n",
        "step_-00001.bin",
        "step_٠٠٠٠٠١.bin",
        "astep_000001.bin",
        "step_000001.json",
        "step_000001.BIN",
        "step_000001 (copy).bin",
    ],
)
def test_what_is_no_checkpoint_of_ours(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert RunDirectory(tmp_path).checkpoint_steps() == []


def test_every_listed_step_has_its_file(tmp_path: Path) -> None:
    for name in ("step_000007.bin", "step_0000008.bin", "step_1000000.bin", "step_01000000.bin"):
        (tmp_path / name).touch()
    run = RunDirectory(tmp_path)
    assert run.checkpoint_steps() == [7, 1_000_000]
    assert all(run.checkpoint(step).exists() for step in run.checkpoint_steps())


def test_a_run_is_a_directory_with_a_run_toml(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert not run.exists()
    run.settings.mkdir()
    assert not run.exists()
    run.settings.rmdir()
    run.settings.touch()
    assert run.exists()
    assert not RunDirectory(tmp_path / "absent").exists()
    assert repr(run) == f"RunDirectory({str(tmp_path)!r})"
