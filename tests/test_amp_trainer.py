"""AMPTrainer: SimpleTrainer in float16 or bfloat16. Here on the CPU, which can do both."""

import copy
import math

import pytest
import torch
from torch import nn

from engine import AMPTrainer, SimpleTrainer
from engine.solver import GradientClipper


def make_trainer(model: nn.Module, batches, **options) -> AMPTrainer:
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    return AMPTrainer(model, batches, optimizer, **options)


def weights(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def losses(trainer: SimpleTrainer) -> list[float]:
    return [value for value, _ in trainer.storage.history("total_loss").values()]


class Probe(nn.Module):
    """The loss is weight × batch, in float32 so that the batch alone decides what overflows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.product_types: list[torch.dtype] = []

    def forward(self, batch: float) -> torch.Tensor:
        self.product_types.append((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
        return self.weight * batch


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_it_learns_in_low_precision_with_weights_in_full(model, batches, precision):
    in_full = copy.deepcopy(model)
    trainer = make_trainer(model, batches, precision=precision, log_grad_scaler=True)
    trainer.train(0, 60)
    simple = SimpleTrainer(in_full, batches, torch.optim.SGD(in_full.parameters(), 0.01, 0.9))
    simple.train(0, 60)
    last_epoch, in_full_precision = losses(trainer)[-6:], losses(simple)[-6:]
    assert sum(last_epoch) < sum(losses(trainer)[:6])
    assert last_epoch == pytest.approx(in_full_precision, rel=0.1)
    assert last_epoch != in_full_precision
    assert weights(model).dtype == torch.float32


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_the_forward_pass_alone_is_in_low_precision(precision):
    seen = []
    model = Probe()
    trainer = make_trainer(model, [1.0], precision=precision)
    trainer.after_backward = lambda: seen.append((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
    trainer.train(0, 1)
    assert (model.product_types, seen) == ([precision], [torch.float32])


def test_options_of_the_step_are_taken_by_name_and_by_detectron2s_positions(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    trainer = AMPTrainer(
        model, batches, optimizer, 5, True, scaler, torch.float16, True, True, accumulate=2
    )
    trainer.train(0, 6)
    assert trainer.async_write_metrics
    assert trainer.zero_grad_before_forward
    assert trainer.storage.history("[metric]grad_scaler").values() == [(4.0, i) for i in range(6)]
    assert [at for _, at in trainer.storage.history("total_loss").values()] == [4]
    assert trainer.epoch_of(3) == 1


def test_bfloat16_scales_nothing(model, batches):
    trainer = make_trainer(model, batches, precision=torch.bfloat16, log_grad_scaler=True)
    trainer.train(0, 2)
    assert not trainer.grad_scaler.is_enabled()
    assert trainer.storage.latest()["[metric]grad_scaler"] == (1.0, 1)


def test_float16_skips_a_step_whose_gradients_overflow_and_lowers_the_scale():
    model = Probe()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    trainer = make_trainer(model, [1e30, 1.0], grad_scaler=scaler)
    trainer.train(0, 1)
    assert weights(model) == 1
    assert scaler.get_scale() == 2.0**39
    trainer.train(1, 2)
    assert weights(model) == pytest.approx(0.99)


@pytest.mark.parametrize("dampening", [0.0, 0.5])
def test_a_first_step_that_a_fused_optimizer_skips_leaves_no_momentum(dampening):
    """torch has it take memory for its momentum, which the step would have filled."""
    expected: list[torch.Tensor] = []
    for batches in ([1.0, 1.0], [1e30, 1.0, 1e30, 1.0]):
        model = Probe()
        options = {"momentum": 0.9, "dampening": dampening, "fused": True}
        optimizer = torch.optim.SGD(model.parameters(), 0.01, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
        trainer = AMPTrainer(model, batches, optimizer, grad_scaler=scaler)
        trainer.train(0, 1)
        assert bool(optimizer.state) == (batches[0] == 1)
        trainer.train(1, len(batches))
        expected.append(weights(model))
    assert torch.equal(*expected)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_gradients_are_clipped_at_their_true_size(precision):
    model = Probe()
    trainer = make_trainer(
        model, [5.0], precision=precision, clip_gradients=GradientClipper(2.0), accumulate=2
    )
    trainer.train(0, 1)
    assert trainer.storage.latest()["grad_norm"] == (5.0, 0)
    assert weights(model) == pytest.approx(0.98)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_a_bad_loss_raises_and_is_not_learnt(precision):
    model = Probe()
    trainer = make_trainer(model, [1.0, math.nan], precision=precision)
    with pytest.raises(FloatingPointError, match="at iteration 1: total_loss = nan"):
        trainer.train(0, 5)
    assert weights(model) == pytest.approx(0.99)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_a_step_with_a_bad_loss_can_be_skipped(precision):
    model, without = Probe(), Probe()
    make_trainer(model, [1.0, math.nan, 1.0], precision=precision, nonfinite="skip").train(0, 3)
    make_trainer(without, [1.0], precision=precision).train(0, 2)
    assert torch.equal(weights(model), weights(without))


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_on_an_accelerator_a_fused_optimizer_skips_bad_steps(monkeypatch, precision):
    monkeypatch.setattr("engine.events.scalar.DEFERS_ALL", True)
    model, without = Probe(), Probe()
    for one, batches in ((model, [1.0, math.nan, 1.0]), (without, [1.0, 1.0])):
        optimizer = torch.optim.SGD(one.parameters(), 0.01, momentum=0.9, fused=True)
        trainer = AMPTrainer(one, batches, optimizer, precision=precision, nonfinite="skip")
        trainer.train(0, len(batches))
    assert torch.equal(weights(model), weights(without))


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_a_resumed_run_ends_with_the_same_weights_and_scale(model, batches, tmp_path, precision):
    started = copy.deepcopy(model)
    straight = make_trainer(model, batches, precision=precision)
    straight.grad_scaler.set_growth_interval(5)
    straight.train(0, 18)

    first = make_trainer(started, batches, precision=precision)
    first.grad_scaler.set_growth_interval(5)
    first.train(0, 12)
    torch.save({"trainer": first.state_dict(), "model": started.state_dict()}, tmp_path / "12.pth")
    saved = torch.load(tmp_path / "12.pth", weights_only=True)

    other = type(model)()
    other.load_state_dict(saved["model"])
    resumed = make_trainer(other, batches, precision=precision)
    resumed.load_state_dict(saved["trainer"])
    resumed.train(resumed.iter + 1, 18)
    assert torch.equal(weights(other), weights(model))
    assert resumed.grad_scaler.state_dict() == straight.grad_scaler.state_dict()
    assert losses(resumed) == losses(straight)


def test_a_run_may_be_resumed_in_another_precision(model, batches, log):
    plain = SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.01))
    plain.train(0, 2)
    half = make_trainer(model, batches, precision=torch.float16)
    half.load_state_dict(plain.state_dict())
    half.train(2, 4)
    brain = make_trainer(model, batches, precision=torch.bfloat16)
    brain.load_state_dict(half.state_dict())
    again = make_trainer(model, batches, precision=torch.float16)
    again.load_state_dict(brain.state_dict())
    assert log.text.count("of another precision: its loss scale is not used") == 3


def test_on_an_accelerator_a_bad_loss_with_good_gradients_is_skipped_beside_a_scaler(monkeypatch):
    monkeypatch.setattr("engine.events.scalar.DEFERS_ALL", True)

    class OneBadLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, batch):
            return {"loss": self.weight * 1.0, "loss_other": self.weight * 0 + batch}

    model = OneBadLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.125, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    batches = [1.0, 1.0, math.inf, 1.0]
    trainer = AMPTrainer(model, batches, optimizer, grad_scaler=scaler, nonfinite="skip")
    trainer.train(0, 4)
    assert (trainer.nonfinite.skipped, model.weight.item()) == (1, 1 - 3 * 0.125)


class Fit(nn.Module):
    """Two layers that learn to give 1, large enough for the CPU's fast kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.layers(batch).float() - 1).pow(2).mean()


def test_bfloat16_trains_at_sizes_that_use_the_fast_kernels():
    trainer = make_trainer(Fit(), [torch.randn(32, 64)], precision=torch.bfloat16)
    trainer.train(0, 40)
    assert losses(trainer)[-1] < losses(trainer)[0] / 2
