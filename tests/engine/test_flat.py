"""The flat engine: store, optimizer, precision, snapshots."""

import dataclasses
import hashlib
import itertools
import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from andread.engine import environment
from andread.engine.flat import FlatEngine
from andread.engine.model import build
from andread.engine.optimizer import LossScaler, learning_rate
from andread.rundir import checkpoint
from andread.rundir.checkpoint import InvalidCheckpoint
from andread.rundir.companion import Companion
from andread.rundir.errors import BusyError, ConfigError
from andread.rundir.settings import (
    EngineSettings,
    ModelSettings,
    OptimizerSettings,
    RunSettings,
    Settings,
)

MODEL = ModelSettings(width=16, heads=2, layers=2, context=12, vocabulary=40)
CPU = torch.device("cpu")


def settings(model: ModelSettings = MODEL, **engine: object) -> Settings:
    return Settings(
        run=RunSettings(steps=10, seed=5),
        model=model,
        sources=(),
        optimizer=OptimizerSettings(batch=6, lr=1e-2, decay_steps=10),
        engine=EngineSettings(**engine),  # type: ignore[arg-type]
    )


def make(given: Settings | None = None) -> FlatEngine:
    given = given or settings()
    environment.configure(given.engine, 1)
    return FlatEngine(given, CPU, 1)


def windows(step: int, batch: int = 6) -> np.ndarray:
    return np.random.default_rng(step).integers(0, 40, (batch, 13), dtype=np.int64)


def companion_of(engine: FlatEngine, step: int) -> Companion:
    return Companion(
        step=step,
        n_params=engine.n_params,
        sha256="0" * 64,
        history_length=2,
        history_sha256="0" * 64,
        policy="",
        reasons=(),
        t=0.0,
        scaler=engine.scaler_state(),
    )


def save(engine: FlatEngine, step: int, path: Path) -> None:
    path.write_bytes(engine.snapshot(step).image())


def test_training_is_adamw_of_torch_on_separate_parameters() -> None:
    """Five steps beside torch.optim.AdamW with torch's own clipping: the same, up to rounding."""
    engine = make()
    reference = build(MODEL, 5)
    optimizer = torch.optim.AdamW(
        reference.parameters(), lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, fused=True
    )
    for step in range(1, 6):
        batch = torch.from_numpy(windows(step))
        optimizer.zero_grad()
        loss = reference(batch[:, :-1], batch[:, 1:]).mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
        optimizer.step()
        result = engine.step(windows(step), step, 1e-2).read()
        assert result.applied
        assert result.loss == pytest.approx(loss.item(), rel=1e-6)
        assert result.grad_norm == pytest.approx(norm.item(), rel=1e-5)
        assert result.loss == pytest.approx(np.mean(result.losses), rel=1e-6)
    for name, expected in reference.named_parameters():
        torch.testing.assert_close(
            dict(engine.model.named_parameters())[name], expected, rtol=1e-5, atol=1e-6
        )


def test_micro_batches_accumulate_to_the_same_step() -> None:
    whole, parts = make(), make(settings(micro_batch=2))
    for step in range(1, 4):
        a = whole.step(windows(step), step, 1e-2).read()
        b = parts.step(windows(step), step, 1e-2).read()
        assert b.losses == pytest.approx(a.losses, rel=1e-5)
        assert b.grad_norm == pytest.approx(a.grad_norm, rel=1e-4)
    torch.testing.assert_close(whole.store.weights, parts.store.weights, rtol=1e-3, atol=1e-5)


def test_a_snapshot_is_the_file_and_loads_bit_for_bit(tmp_path: Path) -> None:
    engine = make()
    for step in range(1, 4):
        engine.step(windows(step), step, 1e-2).read()
    save(engine, 3, tmp_path / "c.bin")
    data = (tmp_path / "c.bin").read_bytes()
    n = engine.n_params
    assert len(data) == 8 + 12 * n
    assert struct.unpack_from("<ii", data) == (3, n)
    floats = struct.unpack_from(f"<{3 * n}f", data, 8)
    assert floats[:n] == tuple(engine.store.weights.tolist())
    assert floats[n : 2 * n] == tuple(engine.store.m.tolist())
    assert floats[2 * n :] == tuple(engine.store.v.tolist())
    offset = 0
    for parameter in engine.model.parameters():  # the model's order is the file's
        part = floats[offset : offset + parameter.numel()]
        assert part == tuple(parameter.detach().flatten().tolist())
        offset += parameter.numel()

    other = make()
    digest = other.load(tmp_path / "c.bin", companion_of(engine, 3))
    assert digest == hashlib.sha256(data).hexdigest()
    for step in range(4, 7):
        a = engine.step(windows(step), step, 1e-2).read()
        assert other.step(windows(step), step, 1e-2).read() == a
    assert torch.equal(engine.store.weights, other.store.weights)
    assert torch.equal(engine.store.v, other.store.v)


def test_without_m_and_v_the_resumed_run_differs(tmp_path: Path) -> None:
    """The reason why they are in the file; guards the test above against comparing nothing."""
    engine = make()
    engine.step(windows(1), 1, 1e-2).read()
    save(engine, 1, tmp_path / "c.bin")
    other = make()
    other.load(tmp_path / "c.bin", companion_of(engine, 1))
    other.store.m.zero_()
    engine.step(windows(2), 2, 1e-2).read()
    other.step(windows(2), 2, 1e-2).read()
    assert not torch.equal(engine.store.weights, other.store.weights)


def test_loading_another_step_or_model_is_refused(tmp_path: Path) -> None:
    engine = make()
    save(engine, 3, tmp_path / "c.bin")
    with pytest.raises(InvalidCheckpoint, match="of step 3"):
        engine.load(tmp_path / "c.bin", companion_of(engine, 4))
    larger = make(settings(dataclasses.replace(MODEL, layers=3)))
    with pytest.raises(InvalidCheckpoint, match="the model has"):
        larger.load(tmp_path / "c.bin", companion_of(larger, 3))


def test_a_non_finite_gradient_changes_nothing_and_time_goes_on() -> None:
    engine, twin = make(), make()
    for step in (1, 2):
        engine.step(windows(step), step, 1e-2).read()
        twin.step(windows(step), step, 1e-2).read()
    before = [region.clone() for region in engine.store.regions]
    with torch.no_grad():
        saved = engine.store.weights[0].item()
        engine.store.weights[0] = math.nan
    result = engine.step(windows(3), 3, 1e-2).read()
    with torch.no_grad():
        engine.store.weights[0] = saved
    assert not result.applied
    assert not result.overflow
    for region, kept in zip(engine.store.regions, before, strict=True):
        assert torch.equal(region, kept)
    engine.step(windows(4), 4, 1e-2).read()  # t is 4 here, not 3
    twin.step(windows(4), 4, 1e-2).read()
    assert torch.equal(engine.store.weights, twin.store.weights)
    skewed = make()
    for step in (1, 2):
        skewed.step(windows(step), step, 1e-2).read()
    skewed.step(windows(4), 3, 1e-2).read()
    assert not torch.equal(engine.store.weights, skewed.store.weights)


@pytest.mark.parametrize("detach", ["zero_grad", "assign"])
def test_a_detached_view_is_noticed(detach: str) -> None:
    engine = make()
    if detach == "zero_grad":
        engine.model.zero_grad()
        expected = "gradient of wte"
    else:
        state = {k: v.clone() for k, v in engine.model.state_dict().items()}
        engine.model.load_state_dict(state, assign=True)
        expected = "weight of wte"
    with pytest.raises(ConfigError, match=expected):
        engine.store.check_views()


def factory(name: str) -> Settings:
    return settings(ModelSettings(context=12, vocabulary=40, factory=f"tests.engine.models:{name}"))


def test_a_model_of_the_users_own_trains_and_only_matrices_decay() -> None:
    engine = make(factory("bigram"))
    decayed, plain = engine.store.decay_slices()
    assert decayed == [slice(0, 1600), slice(1640, 3240)]
    assert plain == [slice(1600, 1640)]
    assert not engine.can_generate
    losses = [engine.step(windows(1), step, 1e-2).read().loss for step in range(1, 30)]
    assert losses[-1] < losses[0] - 0.2
    engine.store.gradients.zero_()
    before = engine.store.weights.clone()
    engine.store.m.zero_()
    engine._optimizer.apply(1, 1e-2, torch.tensor(1.0))
    assert torch.equal(engine.store.weights[1600:1640], before[1600:1640])
    torch.testing.assert_close(engine.store.weights[:1600], before[:1600] * (1 - 1e-2 * 0.1))


@pytest.mark.parametrize(
    ("name", "named"), [("frozen", "bias"), ("half", "table"), ("buffered", "counts")]
)
def test_what_a_checkpoint_cannot_carry_is_refused_by_name(name: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make(factory(name))


def test_a_model_that_detaches_its_gradients_is_stopped() -> None:
    engine = make(factory("forgetful"))
    with pytest.raises(ConfigError, match="flat store"):
        engine.step(windows(1), 1, 1e-2)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_trains_on_float32_masters(precision: str) -> None:
    engine, exact = make(settings(precision=precision)), make()
    for step in range(1, 4):
        a = engine.step(windows(step), step, 1e-2).read()
        b = exact.step(windows(step), step, 1e-2).read()
        assert a.applied
        assert a.loss == pytest.approx(b.loss, rel=0.02)
        assert a.loss != b.loss
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=0.1)
    assert engine.store.weights.dtype == torch.float32
    assert (engine.scaler_state() != {}) == (precision == "fp16")


def test_an_overflow_of_the_scaler_is_told_from_a_non_finite_step() -> None:
    engine = make(settings(precision="fp16"))
    engine._scaler.scale.fill_(2.0**40)
    result = engine.step(windows(1), 1, 1e-2).read()
    assert not result.applied
    assert result.overflow
    assert engine.scaler_state()["scale"] == 2.0**39


def test_the_loss_scaler_follows_torchs_rule() -> None:
    ours = LossScaler(CPU, enabled=True)
    scale, growth = torch.tensor(65536.0), torch.tensor(0, dtype=torch.int32)
    for step in range(5000):
        found = torch.tensor(1.0 if step % 2311 == 17 else 0.0)
        torch._amp_update_scale_(scale, growth, found, 2.0, 0.5, 2000)
        ours.update(found)
        assert ours.state() == {"scale": scale.item(), "good_steps": growth.item()}


def test_the_scaler_resumes_where_it_was(tmp_path: Path) -> None:
    engine = make(settings(precision="fp16"))
    engine._scaler.scale.fill_(512.0)
    engine.step(windows(1), 1, 1e-2).read()
    save(engine, 1, tmp_path / "c.bin")
    other = make(settings(precision="fp16"))
    other.load(tmp_path / "c.bin", companion_of(engine, 1))
    assert other.scaler_state() == engine.scaler_state() == {"scale": 512.0, "good_steps": 1}


def test_the_schedule() -> None:
    given = OptimizerSettings(batch=1, lr=2.0, warmup_steps=4, decay_steps=12, lr_minimum=0.1)
    rates = [learning_rate(given, step) for step in range(1, 15)]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0]
    assert rates[7] == pytest.approx((2.0 + 0.2) / 2)
    assert rates[11:] == [pytest.approx(0.2)] * 3
    assert all(a > b for a, b in itertools.pairwise(rates[3:12]))


def test_a_gpu_that_is_wanted_and_absent_is_worth_another_try() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(BusyError, match="no CUDA device"):
        environment.resolve_device("cuda", "")
    with pytest.raises(BusyError, match="no CUDA device"):
        environment.resolve_device("auto", "cuda")
    assert environment.resolve_device("auto", "cuda", "cpu") == CPU
    with pytest.raises(ConfigError, match="trained on cuda"):
        environment.resolve_device("cpu", "cuda")


@pytest.mark.slow
def test_a_checkpoint_of_the_120m_preset_is_written_and_reloaded(tmp_path: Path) -> None:
    model = settings(ModelSettings(width=768, heads=12, layers=15, context=1024, vocabulary=8448))
    engine = make(model)
    path = tmp_path / "c.bin"
    save(engine, 0, path)
    assert path.stat().st_size == 1_439_170_568
    weights = engine.store.weights.clone()
    engine.store.weights.zero_()
    digest = engine.load(path, companion_of(engine, 0))
    assert torch.equal(engine.store.weights, weights)
    assert digest == checkpoint.read_image(path, 0, engine.n_params)


@pytest.mark.parametrize("changed", [{"weight_decay": 0.9}, {"clip": 0.01}, {"batch": 3}])
def test_settings_may_change_between_steps(changed: dict[str, float]) -> None:
    """From its next step on, an engine is one that was made with the new settings."""
    optimizer = dataclasses.replace(settings().optimizer, **changed)  # type: ignore[arg-type]
    unchanged, engine = make(), make()
    made_so = make(dataclasses.replace(settings(), optimizer=optimizer))
    engine.under(optimizer)
    for each in (unchanged, engine, made_so):
        each.step(windows(1, optimizer.batch), 1, 1e-2).read()
    assert torch.equal(engine.store.weights, made_so.store.weights)
    assert engine._micro_batch == optimizer.batch
    if "batch" not in changed:
        assert not torch.equal(engine.store.weights, unchanged.store.weights)
