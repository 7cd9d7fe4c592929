"""andrectl doctor on real file systems, with a real torch; tests/systemd has units to judge."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from andread.rundir import companion, events
from andread.rundir.history import LossHistory
from andread.rundir.layout import RunDirectory
from andread.rundir.run_toml import read_settings
from andread.rundir.settings import ModelSettings
from andrectl.doctor import clocks, compute, limits, pace, storage
from andrectl.doctor.pace import Pace
from andrectl.doctor.patient import meet

WEEK = 7 * 86400.0
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: mounts, for they need root")


@contextlib.contextmanager
def mounted(place: Path, *arguments: str) -> Iterator[Path]:
    place.mkdir()
    done = subprocess.run(["mount", *arguments, str(place)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"NOT TESTED: a mount, for it is refused: {done.stderr}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def told(result: Any) -> dict[str, dict[str, Any]]:
    """Return the checks of a JSON answer by name."""
    return {check["name"]: check for check in json.loads(result.stdout)["checks"]}


def move(run: RunDirectory, place: Path) -> RunDirectory:
    """Put the settings of `run` into `place`."""
    place.mkdir(exist_ok=True)
    for path in (run.settings, run.policy):
        (place / path.name).write_bytes(path.read_bytes())
    return RunDirectory(place)


def test_without_a_run_the_machine_alone_is_judged(andrectl, tmp_path: Path) -> None:
    result = andrectl("doctor", "--json")
    found = told(result)
    answer = json.loads(result.stdout)
    assert (answer["schema"], answer["run"], answer["exit_code"]) == (1, None, result.exit_code)
    assert found["run"]["standing"] == "skipped"
    assert found["torch"]["standing"] == "ok"
    for name in ("rename", "fsync", "append", "record locks", "disk speed", "boot clock"):
        assert found[name]["standing"] == "ok", found[name]
    assert answer["measured"]["disk_bytes_per_second"] > 0
    assert list((tmp_path / "empty").iterdir()) == [], "nothing stays behind"
    text = andrectl("doctor", "--no-write")
    assert "rename" not in text.stdout and "next: andrectl init" in text.stderr


def test_a_named_run_must_be_there(andrectl, monkeypatch) -> None:
    assert andrectl("--run", "/nowhere", "doctor").exit_code == 66
    monkeypatch.setenv("ANDREAD_RUN", "/nowhere")
    assert andrectl("doctor").exit_code == 66


def test_a_run_is_judged_by_its_needs(andrectl, trained: RunDirectory) -> None:
    before = sorted(path.name for path in trained.path.iterdir())
    found = told(andrectl("--run", trained.path, "doctor", "--json"))
    assert "671,744 parameters" in found["run"]["detail"]
    assert "staging 8.06 MB" in found["host memory"]["detail"]
    assert "8.06 MB" in found["disk space"]["detail"]
    assert found["cadence"]["standing"] == "skipped", "nothing was measured"
    assert sorted(path.name for path in trained.path.iterdir()) == before


def test_what_is_damaged_is_named_and_the_machine_told(andrectl, run: RunDirectory) -> None:
    run.settings.write_text("[run\n")
    result = andrectl("--run", run.path, "doctor", "--json")
    assert result.exit_code == 78
    found = told(result)
    assert found["run"]["standing"] == "failed" and found["rename"]["standing"] == "ok"


@needs_root
def test_a_disk_that_is_too_small(andrectl, run: RunDirectory, tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=6m", "tmpfs") as place:
        result = andrectl("--run", move(run, place / "run").path, "doctor", "--json")
        found = told(result)
        assert result.exit_code == 74
        assert found["disk space"]["standing"] == "failed"
        assert "not even the next checkpoint fits" in found["disk space"]["detail"]
        assert found["file system"]["standing"] == "warning"
        assert "gone after a reboot" in found["file system"]["detail"]
    with mounted(tmp_path / "tight", "-t", "tmpfs", "-o", "size=20m", "tmpfs") as place:
        result = andrectl("--run", move(run, place / "run").path, "doctor", "--json")
        assert (result.exit_code, told(result)["disk space"]["standing"]) == (0, "warning")


@needs_root
def test_a_disk_that_takes_nothing(andrectl, run: RunDirectory, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "noexec", "tmpfs") as place:
        moved = move(run, place / "run")
        found = told(andrectl("--run", moved.path, "doctor", "--json"))
        assert "tmpfs (noexec)" in found["file system"]["detail"]
        assert found["rename"]["standing"] == "ok", "nobody runs programs from it"
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        result = andrectl("--run", moved.path, "doctor", "--json")
        found = told(result)
        assert result.exit_code == 74
        assert found["file system"]["standing"] == found["scratch"]["standing"] == "failed"
        assert "remount,rw" in found["file system"]["hint"]
        assert "rename" not in found and "boot clock" in found, "the rest is told"


@needs_root
def test_a_container_is_named(tmp_path: Path) -> None:
    with mounted(tmp_path / "base", "-t", "tmpfs", "tmpfs") as base:
        for name in ("upper", "work"):
            (base / name).mkdir()
        layers = f"lowerdir=/usr/share/doc,upperdir={base}/upper,workdir={base}/work"
        with mounted(tmp_path / "layer", "-t", "overlay", "-o", layers, "overlay") as place:
            outcome = storage.look_at_mount(place)
            assert outcome.standing == "warning" and "container" in outcome.detail


def test_the_nearest_mount_counts_and_a_network_is_named() -> None:
    table = """\
22 1 0:21 / / rw,relatime - ext4 /dev/vda rw
40 22 0:40 / /srv rw - nfs4 server:/srv rw
41 40 0:41 / /srv/my\\040runs ro,nosuid - btrfs /dev/vdb rw
"""
    assert storage.mount_of(Path("/usr"), table).kind == "ext4"
    nfs = storage.mount_of(Path("/srv/x"), table)
    assert (nfs.kind, nfs.source) == ("nfs4", "server:/srv")
    assert "a network" in storage.judge_mount(Path("/srv/x"), nfs).detail
    inner = storage.mount_of(Path("/srv/my runs/web"), table)
    assert (inner.point, inner.options) == ("/srv/my runs", ("ro", "nosuid"))
    assert storage.judge_mount(Path("/srv/my runs"), inner).standing == "failed"


def test_the_scratch_of_a_dead_doctor_is_swept(tmp_path: Path) -> None:
    old, young = tmp_path / ".doctor-old", tmp_path / ".doctor-young"
    for left in (old, young):
        left.mkdir()
        (left / "file").write_text("x")
    os.utime(old, (1, 1))
    with storage.scratch(tmp_path) as place:
        assert place.is_dir() and not old.exists() and young.exists()
    assert not place.exists()


def test_a_torch_that_cannot_be_loaded(andrectl, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "broken/torch").mkdir(parents=True)
    (tmp_path / "broken/torch/__init__.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open shared object file')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"), prepend=os.pathsep)
    result = andrectl("doctor", "--no-write", "--json")
    assert result.exit_code == 71
    assert "libcudart.so.12" in told(result)["torch"]["detail"]


def test_a_device_that_is_absent(andrectl, trained: RunDirectory) -> None:
    import dataclasses

    if compute.Computer(meet(None, trained.path, WEEK)).cuda:
        pytest.skip("NOT TESTED: an absent GPU, for there is one")
    path = trained.companion(200)
    environment = {"device": "cuda", "torch": "1.0"}
    changed = dataclasses.replace(companion.read(path), environment=environment)
    companion.write(path, changed)
    result = andrectl("--run", trained.path, "doctor", "--no-write", "--json")
    assert result.exit_code == 75
    found = told(result)
    assert "the run computes on CUDA, and " in found["device"]["detail"]
    assert found["torch"]["standing"] == "warning" and "under 1.0" in found["torch"]["detail"]


def test_a_compiler_is_looked_for_where_it_is_needed(andrectl, run, tmp_path, monkeypatch) -> None:
    run.settings.write_text(run.settings.read_text().replace("compile = false", "compile = true"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    result = andrectl("--run", run.path, "doctor", "--no-write", "--json")
    assert result.exit_code == 78
    assert "no C++ compiler" in told(result)["compiler"]["detail"]


def test_the_activations_are_as_many_as_torch_keeps(run: RunDirectory) -> None:
    """What autograd saves, and the logits' gradient, are within the estimate, and not far below."""
    import torch

    from andread.engine.model import Andrea

    settings = read_settings(run.settings)
    shape = settings.model
    model = Andrea(
        ModelSettings(width=128, heads=4, layers=2, context=shape.context, vocabulary=1024)
    )
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    batch = settings.optimizer.batch
    tokens = torch.randint(0, 1024, (batch, shape.context + 1))
    for device, mixed in (("cpu", False), ("cuda", True)):
        kept: dict[int, int] = {}

        def keep(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=mixed),
        ):
            model(tokens[:, :-1], tokens[:, 1:]).mean()
        logits = batch * shape.context * 1024 * 4
        estimate = compute.need(settings, shape.n_params, device).activations
        assert sum(kept.values()) + logits <= estimate <= 1.3 * (sum(kept.values()) + 2 * logits)


def record(run: RunDirectory, times: list[float]) -> None:
    history = LossHistory.create(run.history)
    for step, t in enumerate(times, 1):
        history.record({"step": step, "loss": 1.0, "t": t})
    history.close()


def emit(run: RunDirectory, t: float, kind: str, **fields: Any) -> None:
    events.append(run.events, events.make(kind, **fields) | {"t": t})


def test_the_pace_leaves_out_the_time_between_two_lives(run: RunDirectory) -> None:
    now = time.time()
    record(run, [now, now + 2, now + 4, now + 9, now + 9000, now + 9002])
    emit(run, now - 5, "started")
    emit(run, now + 5, "checkpoint", seconds=3.0)
    emit(run, now + 8998, "started")
    emit(run, now + 9001, "checkpoint", seconds=1.0, stalled=0.25)
    found = pace.measured(run)
    assert found.step == pytest.approx(2.0, abs=1e-3)
    assert found.slowest == pytest.approx(5.0, abs=1e-3)
    assert (found.write, found.stall) == (3.0, 1.625)
    assert pace.measured(RunDirectory(run.path / "nowhere")) == Pace()


def test_the_cadence_beside_the_one_that_costs_least(run: RunDirectory) -> None:
    patient = meet(run, run.path, WEEK)
    patient.pace = Pace(step=10.0, slowest=12.0, write=4.0, stall=4.0)
    fine = pace.look_at_cadence(patient)
    assert pace.best_period(4.0, WEEK) == pytest.approx(2199.6, abs=1)
    assert fine.standing == "ok" and "every 220 steps" in fine.detail
    patient.pace = Pace(step=600.0, slowest=700.0, write=4.0, stall=4.0)
    rare = pace.look_at_cadence(patient)  # 100 steps: 17 hours
    assert rare.standing == "warning" and "checkpoint_every" in rare.hint
    patient.pace = Pace(step=0.1, slowest=0.1, write=4.0, stall=4.0)
    often = pace.look_at_cadence(patient)  # 4 of 10 seconds
    assert often.standing == "warning" and "40.00% of the time" in often.detail
    patient.pace, patient.speed = Pace(step=10.0), 1e6  # none was written: by the disk's speed
    assert "with 8.1s a checkpoint" in pace.look_at_cadence(patient).detail


def test_a_slow_disk_is_told_by_the_time_between_checkpoints(run: RunDirectory) -> None:
    patient = meet(run, run.path, WEEK)
    patient.pace, patient.speed = Pace(step=0.1), 1e6
    assert storage.judge_speed(patient, "").standing == "warning"
    patient.speed = 1e9
    assert storage.judge_speed(patient, "").standing == "ok"


def test_durations_of_systemctl() -> None:
    assert limits.seconds("3min") == 180
    assert limits.seconds("1h 30min 2.5s") == 5402.5
    assert limits.seconds("500ms") == 0.5
    assert limits.seconds("1w 2d") == 777_600
    assert limits.seconds("0") == 0
    assert limits.seconds("infinity") is None


def test_limits_that_a_detached_daemon_would_inherit(run: RunDirectory, python) -> None:
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))\n"
        "from andrectl.cli import main; main()"
    )
    done = python("-c", code, "--run", run.path, "doctor", "--no-write", "--json")
    found = told(done)["resources"]
    assert done.returncode == 71
    assert found["standing"] == "failed" and "ulimit -f is 1.05 MB" in found["detail"]


def test_too_few_open_files_and_too_little_locked_memory(run: RunDirectory) -> None:
    patient = meet(run, run.path, WEEK)
    few = limits.judge_resources(patient, {}, 64, None, "raise it")
    assert (few.standing, few.hint) == ("warning", "raise it")
    assert limits.judge_resources(patient, {}, 1024, 65_536, "").standing == "ok"
    patient.environment = {"device": "cuda"}
    assert limits.judge_resources(patient, {}, 1024, 65_536, "").standing == "warning"


def test_a_clock_that_cannot_be_right(trained: RunDirectory) -> None:
    patient = meet(trained, trained.path, WEEK)
    assert clocks.look_at_wall_clock(patient, time.time()).standing == "ok"
    assert "never set" in clocks.look_at_wall_clock(patient, 1e9).detail
    patient.newest = time.time() + 7200
    assert "2h 00m in the future" in clocks.look_at_wall_clock(patient, time.time()).detail
