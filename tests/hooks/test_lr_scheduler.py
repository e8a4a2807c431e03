import pytest
import torch
from fvcore.common.param_scheduler import (
    CosineParamScheduler,
    LinearParamScheduler,
    MultiStepParamScheduler,
)
from torch import nn
from torch.optim.lr_scheduler import LinearLR, MultiStepLR, SequentialLR

from engine import SimpleTrainer
from engine.checkpoint import Checkpointer
from engine.hooks import CallbackHook, LRScheduler
from engine.solver import LRMultiplier


def make_trainer(model, batches, lr: float = 1.0) -> SimpleTrainer:
    return SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), lr))


def stored_lrs(trainer: SimpleTrainer) -> list[float]:
    return [value for value, _ in trainer.storage.history("lr").values()]


def parameters(count: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(1)) for _ in range(count)]


def test_a_schedule_of_torch_is_stepped_after_each_step(model, batches):
    trainer = make_trainer(model, batches)
    used = []
    scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, step_size=2, gamma=0.5)
    trainer.register_hooks(
        [
            LRScheduler(trainer.optimizer, scheduler),
            CallbackHook(after_backward=lambda t: used.append(t.optimizer.param_groups[0]["lr"])),
        ]
    )
    trainer.train(0, 6)
    assert stored_lrs(trainer) == used == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    assert trainer.storage.smoothing_hints()["lr"] is False


def test_a_missing_schedule_is_named(model, batches):
    trainer = make_trainer(model, batches)
    trainer.register_hooks([LRScheduler()])
    with pytest.raises(ValueError, match="LRScheduler got no schedule, and the trainer has none"):
        trainer.train(0, 1)


def test_a_schedule_that_wants_a_metric_is_refused_with_the_way_to_use_it(model, batches):
    trainer = make_trainer(model, batches)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(trainer.optimizer)
    with pytest.raises(TypeError, match=r"ReduceLROnPlateau.*in the after_eval\(results\)"):
        LRScheduler(scheduler=plateau)
    trainer.scheduler = plateau
    trainer.register_hooks([LRScheduler()])
    with pytest.raises(TypeError, match="ReduceLROnPlateau"):
        trainer.train(0, 1)


@pytest.mark.parametrize("scheduler", ["cosine", 0.1, CosineParamScheduler, nn.Linear(1, 1)])
def test_what_is_no_schedule_is_refused_at_once(scheduler):
    with pytest.raises(TypeError, match=r"one of torch.optim.lr_scheduler or .*, got"):
        LRScheduler(scheduler=scheduler)


def test_optimizer_and_schedule_in_each_others_place_are_refused(model, batches):
    optimizer = make_trainer(model, batches).optimizer
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    with pytest.raises(TypeError, match=r"optimizer must be one of torch's, got .*StepLR"):
        LRScheduler(schedule)
    with pytest.raises(TypeError, match=r"scheduler must be one of .*, got SGD"):
        LRScheduler(scheduler=optimizer)


def test_a_param_scheduler_is_a_curve_over_the_whole_run(model, batches):
    trainer = make_trainer(model, batches, lr=0.01)
    curve = MultiStepParamScheduler([1, 0.1], milestones=[1, 2])
    trainer.register_hooks([LRScheduler(scheduler=curve)])
    trainer.train(0, 6)
    assert stored_lrs(trainer) == pytest.approx([0.01] * 3 + [0.001] * 3)


def test_a_param_scheduler_multiplies_the_rate_of_each_group(model, batches):
    groups = [{"params": [model.linear.bias], "lr": 0.5}, {"params": [model.linear.weight]}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    trainer = SimpleTrainer(model, batches, optimizer)
    trainer.register_hooks([LRScheduler(scheduler=LinearParamScheduler(1.0, 0.0))])
    trainer.train(0, 4)
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.0]
    assert [group["initial_lr"] for group in optimizer.param_groups] == [0.5, 0.1]


def test_what_is_not_given_is_taken_from_the_trainer(model, batches):
    trainer = make_trainer(model, batches)
    trainer.scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, 0.5)
    trainer.register_hooks([LRScheduler()])
    trainer.train(0, 3)
    assert stored_lrs(trainer) == [1.0, 0.5, 0.25]


def test_a_second_run_follows_the_curve_anew(model, batches):
    trainer = make_trainer(model, batches)
    trainer.register_hooks([LRScheduler(scheduler=LinearParamScheduler(1.0, 0.0))])
    trainer.train(0, 4)
    trainer.train(0, 4)
    assert stored_lrs(trainer) == [1.0, 0.75, 0.5, 0.25]
    trainer.train(4, 8)
    assert stored_lrs(trainer) == [0.5, 0.375, 0.25, 0.125]


def test_a_second_run_follows_the_optimizer_of_the_trainer(model, batches):
    trainer = make_trainer(model, batches)
    trainer.register_hooks([LRScheduler(scheduler=LinearParamScheduler(1.0, 0.0))])
    trainer.train(0, 2)
    trainer.optimizer = torch.optim.SGD(model.parameters(), lr=8.0)
    trainer.train(0, 2)
    assert stored_lrs(trainer) == [8.0, 4.0]
    assert trainer.optimizer.param_groups[0]["lr"] == 0.0


def test_an_optimizer_and_a_schedule_of_a_second_phase_take_over(model, batches):
    def begin_second_phase(trainer) -> None:
        if trainer.iter == 1:
            trainer.optimizer = torch.optim.SGD(model.parameters(), lr=8.0)
            trainer.scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, 0.5)

    trainer = make_trainer(model, batches)
    trainer.scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, 0.1)
    trainer.register_hooks([LRScheduler(), CallbackHook(after_step=begin_second_phase)])
    trainer.train(0, 5)
    assert stored_lrs(trainer) == pytest.approx([1.0, 0.1, 8.0, 4.0, 2.0])
    assert trainer.optimizer.param_groups[0]["lr"] == 1.0


def schedule_of_torch(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)


def curve(optimizer):
    return CosineParamScheduler(1.0, 0.0)


class Harmonic:
    """A schedule that is none of torch's."""

    def __init__(self, optimizer) -> None:
        self.optimizer, self.steps = optimizer, 0

    def step(self) -> None:
        self.steps += 1
        self.optimizer.param_groups[0]["lr"] = 0.1 / (1 + self.steps)

    def state_dict(self) -> dict:
        return {"steps": self.steps}

    def load_state_dict(self, state_dict: dict) -> None:
        self.steps = state_dict["steps"]


@pytest.mark.parametrize("make_scheduler", [schedule_of_torch, curve, Harmonic])
def test_a_resumed_run_goes_on_with_the_same_rates(model, batches, tmp_path, make_scheduler):
    def make() -> SimpleTrainer:
        trainer = make_trainer(model, batches, lr=0.1)
        trainer.register_hooks([LRScheduler(scheduler=make_scheduler(trainer.optimizer))])
        return trainer

    straight = make()
    straight.train(0, 10)

    stopped = make()
    stopped.register_hooks(
        [CallbackHook(after_step=lambda t: t.iter == 3 and t.stop("enough", requeue=True))]
    )
    stopped.train(0, 10)
    torch.save(stopped.state_dict(), tmp_path / "state.pth")

    resumed = make()
    resumed.load_state_dict(torch.load(tmp_path / "state.pth", weights_only=True))
    resumed.train(resumed.iter + 1, 10)
    assert stored_lrs(resumed) == pytest.approx(stored_lrs(straight))
    assert resumed.state_dict()["hooks"] == stopped.state_dict()["hooks"] | {
        "LRScheduler": straight.state_dict()["hooks"]["LRScheduler"]
    }


def test_the_rate_shown_is_that_of_the_largest_group():
    optimizer = torch.optim.SGD(
        [
            {"params": parameters(2), "lr": 0.1},
            {"params": parameters(5), "lr": 0.2},
            {"params": parameters(1), "lr": 0.3},
        ]
    )
    assert LRScheduler.get_best_param_group_id(optimizer) == 1


def test_the_rate_shown_is_the_commonest_where_each_group_has_one_parameter():
    optimizer = torch.optim.SGD(
        [{"params": parameters(1), "lr": lr} for lr in (0.1, 0.2, 0.3, 0.2, 0.3, 0.2)]
    )
    assert LRScheduler.get_best_param_group_id(optimizer) == 1


def test_the_rate_shown_is_the_first_where_there_is_one_group_of_one_parameter():
    assert LRScheduler.get_best_param_group_id(torch.optim.SGD(parameters(1), lr=0.1)) == 0


def test_a_run_resumed_in_a_warm_up_goes_on_to_the_schedule_after_it(model, batches, tmp_path):
    def make() -> SimpleTrainer:
        trainer = make_trainer(model, batches)
        parts = [LinearLR(trainer.optimizer, 0.1, 1.0, 4), MultiStepLR(trainer.optimizer, [3])]
        schedule = SequentialLR(trainer.optimizer, parts, [4])
        trainer.register_hooks([LRScheduler(scheduler=schedule)])
        return trainer

    straight = make()
    straight.train(0, 12)
    for last in (2, 12):  # saved in the warm-up, then resumed
        trainer = make()
        checkpointer = Checkpointer(model, tmp_path, trainer=trainer)
        checkpointer.resume_or_load("", resume=True)
        trainer.train(trainer.iter + 1 if last == 12 else 0, last)
        checkpointer.save("model_final")
    assert stored_lrs(trainer) == pytest.approx(stored_lrs(straight))


def test_the_first_step_of_a_resumed_run_has_the_rate_of_a_changed_schedule(model, batches):
    def make(milestone: int) -> SimpleTrainer:
        trainer = make_trainer(model, batches)
        curve = MultiStepParamScheduler([1.0, 0.1], milestones=[milestone], num_updates=10)
        schedule = LRMultiplier(trainer.optimizer, curve, 10)
        trainer.register_hooks([LRScheduler(scheduler=schedule)])
        return trainer

    stopped = make(milestone=3)
    stopped.train(0, 5)
    resumed = make(milestone=8)
    resumed.load_state_dict(stopped.state_dict())
    resumed.train(5, 10)
    assert stored_lrs(resumed)[5:] == pytest.approx([1.0, 1.0, 1.0, 0.1, 0.1])
