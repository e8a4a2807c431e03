"""SimpleTrainer when a loss is NaN or infinite, on the CPU and as it would be on a device."""

import json
import math

import pytest
import torch
from fvcore.common.param_scheduler import CosineParamScheduler
from torch.utils._python_dispatch import TorchDispatchMode

from engine import SimpleTrainer
from engine.events import CommonMetricPrinter, JSONWriter
from engine.hooks import CallbackHook, EMAHook, IterationTimer, LRScheduler, PeriodicWriter
from engine.solver import GradientClipper
from small_trainers import Numbered, make_trainer, weights


def bad_at(*bad: int, value: float = math.nan) -> list[float]:
    """Batches that make the loss NaN or infinite at some iterations."""
    return [value if n in bad else 1.0 for n in range(50)]


def two_losses() -> Numbered:
    return Numbered(lambda weight, batch: {"loss_good": weight, "loss_bad": weight * batch})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_on_the_cpu_a_bad_loss_raises_in_that_very_step_and_is_not_learnt(value):
    model = two_losses()
    trainer = make_trainer(
        model, bad_at(3, value=value), 1e-3, gather_metric_period=20, async_write_metrics=True
    )
    with pytest.raises(FloatingPointError, match=rf"at iteration 3: loss_bad = {value}$"):
        trainer.train(0, 10)
    assert len(model.batches) == 4
    assert weights(model).isfinite()
    assert trainer.failed


def test_a_bad_loss_reaches_the_files_of_a_run_that_it_ended(tmp_path):
    trainer = make_trainer(two_losses(), bad_at(3))
    trainer.register_hooks([PeriodicWriter([JSONWriter(tmp_path / "metrics.json")])])
    with pytest.raises(FloatingPointError):
        trainer.train(0, 10)
    (line,) = (tmp_path / "metrics.json").read_text().splitlines()
    assert json.loads(line)["iteration"] == 3
    assert json.loads(line)["loss_bad"] is None


def test_steps_with_a_bad_loss_can_be_skipped(log):
    model = two_losses()
    skipping = make_trainer(model, bad_at(0, 3, 4), nonfinite="skip")
    skipping.train(0, 8)
    without = two_losses()
    make_trainer(without, [1.0]).train(0, 5)
    assert torch.equal(weights(model), weights(without))
    warnings = [record.message for record in log.records if record.levelname == "WARNING"]
    assert warnings == [
        f"the loss became infinite or NaN at iteration {at}: loss_bad = nan; the step is skipped{n}"
        for at, n in [(0, ""), (3, ""), (4, ", 2 in a row and 3 in this run")]
    ]


def test_a_bad_loss_can_be_ignored():
    model = two_losses()
    make_trainer(model, bad_at(3), nonfinite="ignore").train(0, 8)
    assert len(model.batches) == 8
    assert weights(model).isnan()


def test_a_bad_metric_that_is_no_loss_is_no_error():
    nan = torch.tensor(math.nan)
    model = Numbered(lambda weight, batch: {"loss": weight, "old_total_loss": nan})
    make_trainer(model, [1.0]).train(0, 2)


def test_steps_are_skipped_whole_where_gradients_are_accumulated(log):
    model, without = two_losses(), two_losses()
    batches = [1.0, 1.0, 1.0, math.nan, 1.0, 1.0]
    make_trainer(model, batches, accumulate=2, nonfinite="skip").train(0, 3)
    make_trainer(without, [1.0], accumulate=2).train(0, 2)
    assert torch.equal(weights(model), weights(without))
    assert "at iteration 1: loss_bad = nan; the step is skipped" in log.text


def test_the_schedule_goes_on_and_the_average_stays_finite_over_a_skipped_step():
    model = two_losses()
    trainer = make_trainer(model, bad_at(2), nonfinite="skip")
    average = EMAHook(decay=0.5)
    trainer.register_hooks([LRScheduler(scheduler=CosineParamScheduler(1.0, 0.0)), average])
    trainer.train(0, 4)
    rates = [rate for rate, _ in trainer.storage.history("lr").values()]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == 4
    assert average.count == 4
    assert average.average["weight"].isfinite()


def test_an_unknown_policy_is_refused(model, batches):
    with pytest.raises(ValueError, match=r"'raise', 'skip', 'ignore'\), got 'warn'"):
        make_trainer(model, batches, nonfinite="warn")


@pytest.fixture
def like_an_accelerator(monkeypatch):
    """Has tensors on the CPU treated as those on a device that must not be stopped."""
    monkeypatch.setattr("engine.events.scalar.DEFERS_ALL", True)


@pytest.mark.usefixtures("like_an_accelerator")
@pytest.mark.parametrize(("bad", "noticed"), [(3, 4), (4, 4), (5, 9), (11, 11)])
def test_on_an_accelerator_a_bad_loss_raises_when_the_next_write_is_due(bad, noticed, tmp_path):
    model = two_losses()
    trainer = make_trainer(model, bad_at(bad))
    trainer.register_hooks([PeriodicWriter([JSONWriter(tmp_path / "metrics.json")], period=5)])
    with pytest.raises(FloatingPointError, match=rf"at iteration {bad}: .*loss_bad = nan"):
        trainer.train(0, 12)
    assert len(model.batches) == noticed + 1


@pytest.mark.usefixtures("like_an_accelerator")
@pytest.mark.parametrize("period", [1, 20])
def test_on_an_accelerator_a_bad_loss_raises_at_the_end_where_nothing_writes(period):
    failed = []
    trainer = make_trainer(two_losses(), bad_at(3), gather_metric_period=period)
    trainer.register_hooks([CallbackHook(after_train=lambda t: failed.append(t.failed))])
    with pytest.raises(FloatingPointError, match=r"at iteration 3: .*loss_bad = nan"):
        trainer.train(0, 12)
    assert failed == [True]


@pytest.mark.usefixtures("like_an_accelerator")
@pytest.mark.parametrize("fused", [True, False])
def test_on_an_accelerator_a_bad_step_is_skipped_with_a_warning(fused, log):
    model, without = two_losses(), two_losses()
    for one, batches in ((model, bad_at(3, 4)), (without, [1.0])):
        optimizer = torch.optim.SGD(one.parameters(), 0.1, momentum=0.9, fused=fused)
        trainer = SimpleTrainer(one, batches, optimizer, nonfinite="skip")
        trainer.register_hooks([PeriodicWriter([CommonMetricPrinter()], period=5)])
        trainer.train(0, 8 if one is model else 6)
    assert torch.equal(weights(model), weights(without))
    warnings = [record.message for record in log.records if record.levelname == "WARNING"]
    assert [warning.split(":")[0] for warning in warnings] == [
        f"the loss became infinite or NaN at iteration {at}" for at in (3, 4)
    ]
    assert all("loss_bad = nan" in warning for warning in warnings)


@pytest.mark.usefixtures("like_an_accelerator")
def test_a_bad_first_step_leaves_a_fused_optimizer_whole():
    model, without = two_losses(), two_losses()
    for one, batches in ((model, bad_at(0)), (without, [1.0])):
        optimizer = torch.optim.SGD(one.parameters(), 0.1, momentum=0.9, fused=True)
        trainer = SimpleTrainer(one, batches, optimizer, nonfinite="skip")
        trainer.train(0, 5 if one is model else 4)
        assert not hasattr(optimizer, "found_inf")  # it would speak in the steps of others
    assert torch.equal(weights(model), weights(without))


class Conversions(TorchDispatchMode):
    """Counts how often a tensor is turned into a number, which would stop a device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **kwargs or {})


def count_conversions(trainer: SimpleTrainer, tmp_path) -> list[int]:
    """The conversions of each of ten steps; writers are due in the fifth and the tenth."""
    counts = []
    with Conversions() as conversions:
        counter = CallbackHook(after_step=lambda t: counts.append(conversions.count))
        trainer.register_hooks([counter], priority="LOWEST")
        trainer.register_hooks(
            [
                IterationTimer(),
                LRScheduler(scheduler=CosineParamScheduler(1.0, 0.0)),
                PeriodicWriter([JSONWriter(tmp_path / "metrics.json")], period=5),
            ]
        )
        trainer.train(0, 10)
    return [after - before for before, after in zip([0, *counts], counts, strict=False)]


def make_clipping_trainer(**options) -> SimpleTrainer:
    model = two_losses()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=True)
    clipper = GradientClipper(1.0)
    return SimpleTrainer(
        model, [torch.ones(())], optimizer, clip_gradients=clipper, accumulate=2, **options
    )


@pytest.mark.usefixtures("like_an_accelerator")
@pytest.mark.parametrize("policy", ["raise", "skip", "ignore"])
def test_no_step_without_a_write_turns_a_tensor_into_a_number(policy, tmp_path):
    counts = count_conversions(make_clipping_trainer(nonfinite=policy), tmp_path)
    # To skip, the very first step is waited for: the optimizer makes its state in it.
    assert counts[0] == (policy == "skip")
    assert counts[1:4] + counts[5:9] == [0] * 7


def test_on_the_cpu_numbers_are_taken_at_once(tmp_path):
    assert min(count_conversions(make_clipping_trainer(), tmp_path)) > 0
