import math

import pytest
import torch
from fvcore.common.param_scheduler import (
    ConstantParamScheduler,
    CosineParamScheduler,
    LinearParamScheduler,
    MultiStepParamScheduler,
    ParamScheduler,
    PolynomialDecayParamScheduler,
    StepWithFixedGammaParamScheduler,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from engine.solver.lr_scheduler import LRMultiplier, WarmupParamScheduler, value_at

CURVES = [
    ConstantParamScheduler(1.0),
    CosineParamScheduler(1.0, 0.1),
    LinearParamScheduler(1.0, 0.0),
    MultiStepParamScheduler([1.0, 0.1, 0.01], milestones=[3, 6, 10]),
    PolynomialDecayParamScheduler(1.0, 0.9),
    StepWithFixedGammaParamScheduler(1.0, num_decays=2, gamma=0.1, num_updates=10),
]


def sgd(*lrs: float, **kwargs: float) -> torch.optim.SGD:
    groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in lrs]
    return torch.optim.SGD(groups, **kwargs)


def lrs_of_a_run(scheduler: LRMultiplier, steps: int) -> list[float]:
    lrs = []
    for _ in range(steps):
        lrs.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.step()
    return lrs


def test_each_group_keeps_its_own_lr_times_the_curve():
    optimizer = sgd(1.0, 0.1)
    scheduler = LRMultiplier(optimizer, LinearParamScheduler(1.0, 0.0), max_iter=4)
    seen = []
    for _ in range(5):
        seen.append([group["lr"] for group in optimizer.param_groups])
        scheduler.step()
    assert seen == [pytest.approx([lr, lr / 10]) for lr in (1.0, 0.75, 0.5, 0.25, 0.0)]
    assert scheduler.base_lrs == [1.0, 0.1]


def test_it_is_a_torch_scheduler_that_leaves_the_optimizers_step_alone():
    optimizer = sgd(1.0)
    scheduler = LRMultiplier(optimizer, ConstantParamScheduler(1.0), max_iter=4)
    assert isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
    assert "step" not in vars(optimizer)


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: type(curve).__name__)
def test_past_the_end_the_final_value_stays(curve: ParamScheduler):
    optimizer = sgd(1.0)
    lrs = lrs_of_a_run(LRMultiplier(optimizer, curve, max_iter=10), steps=14)
    assert len(set(lrs[10:])) == 1
    assert all(math.isfinite(lr) and lr >= 0 for lr in lrs)


def test_an_error_of_the_users_curve_before_the_end_is_not_hidden():
    class Broken(ParamScheduler):
        def __call__(self, where: float) -> float:
            raise RuntimeError("broken curve")

    with pytest.raises(RuntimeError, match="broken curve"):
        LRMultiplier(sgd(1.0), Broken(), max_iter=10)


def test_a_tensor_lr_is_filled_in_place():
    lr = torch.tensor(1.0)
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(1))], lr=lr)
    held = optimizer.param_groups[0]["lr"]
    scheduler = LRMultiplier(optimizer, LinearParamScheduler(1.0, 0.0), max_iter=2)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] is held
    assert held.item() == 0.5
    assert scheduler.base_lrs == [1.0]
    scheduler.get_last_lr()[0].fill_(7.0)
    assert held.item() == 0.5


def test_each_of_many_iterations_has_its_own_value_also_after_a_jump():
    optimizer, curve = sgd(2.0), CosineParamScheduler(1.0, 0.1)
    scheduler = LRMultiplier(optimizer, curve, max_iter=250)
    for iteration in [*range(260), *range(30, 20, -1), 249, 0, 120]:
        scheduler.step(iteration)
        expected = 2.0 * curve(min(iteration, 250) / 250)
        assert scheduler.get_last_lr() == scheduler.get_lr() == [expected]


def test_a_subclass_may_have_rates_of_its_own():
    class AtLeast(LRMultiplier):
        def get_lr(self) -> list:
            return [max(0.5, lr) for lr in super().get_lr()]

    scheduler = AtLeast(sgd(1.0), LinearParamScheduler(1.0, 0.0), max_iter=4)
    assert lrs_of_a_run(scheduler, 5) == [1.0, 0.75, 0.5, 0.5, 0.5]


def test_the_state_is_plain_and_carries_the_schedule_on():
    curve = CosineParamScheduler(1.0, 0.0)
    straight = LRMultiplier(sgd(1.0, 0.5), curve, max_iter=10)
    for _ in range(6):
        straight.step()
    state = straight.state_dict()
    assert state == {"base_lrs": [1.0, 0.5], "last_epoch": 6}

    resumed = LRMultiplier(sgd(1.0, 0.5), curve, max_iter=10)
    resumed.load_state_dict(state)
    assert resumed.get_last_lr() == straight.get_last_lr()
    straight.step()
    resumed.step()
    assert resumed.last_epoch == 7
    assert resumed.get_last_lr() == straight.get_last_lr()


def test_it_continues_after_the_optimizers_state_was_loaded():
    optimizer = sgd(1.0)
    scheduler = LRMultiplier(optimizer, LinearParamScheduler(1.0, 0.0), max_iter=10)
    for _ in range(4):
        scheduler.step()
    restored = sgd(1.0)
    restored.load_state_dict(optimizer.state_dict())
    continued = LRMultiplier(restored, LinearParamScheduler(1.0, 0.0), max_iter=10, last_iter=3)
    assert continued.last_epoch == 4
    assert continued.get_last_lr() == scheduler.get_last_lr() == [pytest.approx(0.6)]


def test_continuing_without_initial_lrs_says_to_load_the_optimizer():
    with pytest.raises(KeyError, match="load the optimizer's state first"):
        LRMultiplier(sgd(1.0), ConstantParamScheduler(1.0), max_iter=10, last_iter=3)


def test_a_state_with_another_number_of_groups_is_refused():
    state = LRMultiplier(sgd(1.0, 1.0), ConstantParamScheduler(1.0), max_iter=10).state_dict()
    other = LRMultiplier(sgd(1.0), ConstantParamScheduler(1.0), max_iter=10)
    with pytest.raises(ValueError, match="2 parameter groups, the optimizer has 1"):
        other.load_state_dict(state)


def test_a_group_added_later_is_scheduled_from_its_own_lr():
    optimizer = sgd(1.0)
    scheduler = LRMultiplier(optimizer, LinearParamScheduler(1.0, 0.0), max_iter=4)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 10.0})
    scheduler.step()
    assert scheduler.get_last_lr() == [0.75, 7.5]


def test_momentum_follows_its_own_curve():
    optimizer = sgd(1.0, momentum=0.8)
    scheduler = LRMultiplier(
        optimizer, ConstantParamScheduler(1.0), 4, momentum=LinearParamScheduler(1.0, 0.5)
    )
    assert optimizer.param_groups[0]["momentum"] == 0.8
    scheduler.step(2)
    assert optimizer.param_groups[0]["momentum"] == pytest.approx(0.6)
    assert scheduler.state_dict()["base_momenta"] == [0.8]
    resumed = sgd(1.0, momentum=0.8)
    LRMultiplier(
        resumed, ConstantParamScheduler(1.0), 4, momentum=LinearParamScheduler(1.0, 0.5)
    ).load_state_dict(scheduler.state_dict())
    assert resumed.param_groups[0]["momentum"] == pytest.approx(0.6)


def test_for_adam_the_momentum_is_the_first_beta():
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(1))], betas=(0.9, 0.99))
    LRMultiplier(optimizer, ConstantParamScheduler(1.0), 4, momentum=ConstantParamScheduler(0.5))
    assert optimizer.param_groups[0]["betas"] == (0.45, 0.99)


def test_a_momentum_curve_for_an_optimizer_without_momentum_is_refused():
    optimizer = torch.optim.Adagrad([nn.Parameter(torch.ones(1))])
    with pytest.raises(ValueError, match="needs an optimizer with momentum or betas"):
        LRMultiplier(
            optimizer, ConstantParamScheduler(1.0), 4, momentum=ConstantParamScheduler(0.5)
        )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"multiplier": lambda where: 1.0, "max_iter": 4}, TypeError, "ParamSchedulers, got fun"),
        ({"multiplier": CURVES[0], "max_iter": 0}, ValueError, "at least 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        LRMultiplier(sgd(1.0), **arguments)


def test_linear_warm_up_rises_from_the_factor_to_the_schedule():
    curve = WarmupParamScheduler(ConstantParamScheduler(2.0), 0.5, warmup_length=0.4)
    assert [curve(i / 10) for i in range(10)] == pytest.approx(
        [1.0, 1.25, 1.5, 1.75, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    )


def test_constant_warm_up_stays_at_the_factor():
    curve = WarmupParamScheduler(ConstantParamScheduler(2.0), 0.5, 0.2, "constant")
    assert [curve(i / 10) for i in range(4)] == [1.0, 1.0, 2.0, 2.0]


@given(
    warmup_length=st.floats(0, 1),
    curve=st.sampled_from(CURVES),
    rescale=st.booleans(),
    method=st.sampled_from(["linear", "constant"]),
)
def test_warm_up_meets_the_schedule_where_it_ends(warmup_length, curve, rescale, method):
    warm = WarmupParamScheduler(curve, 0.001, warmup_length, method, rescale)
    at_the_end = value_at(warm, warmup_length)
    assert at_the_end == pytest.approx(value_at(curve, 0.0 if rescale else warmup_length))
    if warmup_length > 0.01:
        assert warm(0.0) == pytest.approx(0.001)
        if method == "linear":
            assert warm(warmup_length * (1 - 1e-9)) == pytest.approx(at_the_end, abs=1e-6)


@given(curve=st.sampled_from(CURVES), length=st.floats(0.01, 0.99))
def test_a_rescaled_schedule_is_whole_after_the_warm_up(curve, length):
    warm = WarmupParamScheduler(curve, 0.5, length, rescale_interval=True)
    assert value_at(warm, 1.0) == pytest.approx(value_at(curve, 1.0), abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"warmup_length": 0.1, "warmup_method": "cubic"}, "linear or constant, got 'cubic'"),
        ({"warmup_length": 1.5}, "0 to 1; got 1.5"),
    ],
)
def test_bad_warm_ups_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        WarmupParamScheduler(ConstantParamScheduler(1.0), 0.5, **arguments)
