import math

import pytest
import torch
from fvcore.common.param_scheduler import LinearParamScheduler
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from engine.config import get_cfg
from engine.solver.scaling import lengths_in_iterations
from engine.solver.schedules import SCHEDULE_REGISTRY, SCHEDULES, build_lr_scheduler


def optimizer(lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=lr, momentum=0.8)


def factors(cfg, key: str = "lr", **kwargs: int) -> list[float]:
    """What the LR (or momentum) is multiplied by in each iteration of the run."""
    scheduler = build_lr_scheduler(cfg, optimizer(), **kwargs)
    group = scheduler.optimizer.param_groups[0]
    first = {"lr": 0.1, "momentum": 0.8}[key]
    seen = []
    for _ in range(scheduler.max_iter):
        seen.append(group[key] / first)
        scheduler.step()
    return seen


def test_multi_step_multiplies_by_gamma_at_each_step(cfg):
    cfg.SOLVER.STEPS = (30, 60)
    assert factors(cfg) == pytest.approx([1.0] * 30 + [0.1] * 30 + [0.01] * 40)


def test_steps_past_the_end_are_dropped_with_a_warning(cfg, caplog):
    cfg.SOLVER.STEPS = (30, 100, 3000)
    assert factors(cfg) == pytest.approx([1.0] * 30 + [0.1] * 70)
    assert "STEPS [100, 3000] have no effect: the run ends at iteration 100" in caplog.text


@pytest.mark.parametrize("steps", [(60, 30), (0, 30), (30, 30), (-5,)])
def test_steps_that_do_not_rise_are_refused(cfg, steps):
    cfg.SOLVER.STEPS = steps
    with pytest.raises(ValueError, match="STEPS must be above 0 and rise"):
        build_lr_scheduler(cfg, optimizer())


def test_cosine_falls_to_the_end_lr(cfg):
    cfg.SOLVER.LR_SCHEDULER_NAME = "WarmupCosineLR"
    cfg.SOLVER.BASE_LR_END = 0.02
    scheduler = build_lr_scheduler(cfg, optimizer())
    scheduler.step(50)
    assert scheduler.get_last_lr() == [pytest.approx(0.06)]
    scheduler.step(100)
    assert scheduler.get_last_lr() == [pytest.approx(0.02)]


def test_step_with_fixed_gamma_makes_equally_long_steps(cfg):
    cfg.SOLVER.LR_SCHEDULER_NAME = "WarmupStepWithFixedGammaLR"
    assert factors(cfg) == pytest.approx([0.1**i for i in range(4) for _ in range(25)])


def test_poly_falls_to_the_end_lr(cfg):
    cfg.SOLVER.LR_SCHEDULER_NAME = "WarmupPolyLR"
    cfg.SOLVER.POWER = 2.0
    cfg.SOLVER.BASE_LR_END = 0.01
    assert factors(cfg) == pytest.approx([0.1 + 0.9 * (1 - i / 100) ** 2 for i in range(100)])


def test_step_cosine_turns_into_a_cosine_at_the_last_step(cfg):
    cfg.SOLVER.LR_SCHEDULER_NAME = "WarmupStepCosineLR"
    cfg.SOLVER.STEPS = (20, 60)
    cfg.SOLVER.GAMMA = 0.5
    cosine = [0.25 * (1 + math.cos(math.pi * i / 40)) for i in range(40)]
    assert factors(cfg) == pytest.approx([1.0] * 20 + [0.5] * 40 + cosine)


def test_step_cosine_without_steps_is_a_cosine(cfg):
    cfg.SOLVER.LR_SCHEDULER_NAME = "WarmupStepCosineLR"
    stepless = factors(cfg)
    cfg.SOLVER.LR_SCHEDULER_NAME = "WarmupCosineLR"
    assert stepless == factors(cfg)


def test_constant_stays(cfg):
    cfg.SOLVER.LR_SCHEDULER_NAME = "WarmupConstantLR"
    assert factors(cfg) == [1.0] * 100


def test_warm_up_starts_at_the_factor(cfg):
    cfg.SOLVER.merge_from_list(["WARMUP_ITERS", 10, "WARMUP_FACTOR", 0.5])
    assert factors(cfg) == pytest.approx([0.5 + 0.05 * i for i in range(10)] + [1.0] * 90)


def test_warm_up_may_start_at_an_lr_instead(cfg):
    cfg.SOLVER.merge_from_list(["WARMUP_ITERS", 10, "WARMUP_METHOD", "constant"])
    cfg.SOLVER.WARMUP_START_LR = 0.02
    assert factors(cfg) == pytest.approx([0.2] * 10 + [1.0] * 90)


def test_lengths_may_be_given_in_epochs():
    cfg = get_cfg()
    cfg.SOLVER.merge_from_list(["MAX_ITER", "4 epochs", "STEPS", ["2 epoch"], "GAMMA", 0.1])
    cfg.SOLVER.merge_from_list(["WARMUP_ITERS", "0.5 epoch", "WARMUP_METHOD", "constant"])
    expected = [0.001] * 5 + [1.0] * 15 + [0.1] * 20
    assert factors(lengths_in_iterations(cfg, epoch_length=10)) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"SOLVER\.MAX_ITER: '4 epochs' needs the length"):
        build_lr_scheduler(cfg, optimizer())


@pytest.mark.parametrize("warmup", [100, 1000])
def test_a_warm_up_as_long_as_the_run_or_longer_is_cut_with_a_warning(cfg, caplog, warmup):
    cfg.SOLVER.WARMUP_ITERS = warmup
    assert factors(cfg)[10] == 1.0
    message = f"WARMUP_ITERS is {warmup} and the run ends at 100: the warm-up is shortened to 10"
    assert message in caplog.text


def test_a_learning_rate_that_is_low_all_the_time_is_told(cfg, caplog):
    cfg.SOLVER.merge_from_list(["LR_SCHEDULER_NAME", "WarmupCosineLR", "WARMUP_ITERS", 80])
    build_lr_scheduler(cfg, optimizer())
    assert "The learning rate never exceeds 0.095 × BASE_LR in this run of 100" in caplog.text


@given(name=st.sampled_from([*SCHEDULES]), warmup=st.integers(0, 150), rescale=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_every_schedule_lasts_for_the_whole_run_and_past_it(cfg, name, warmup, rescale):
    cfg.SOLVER.LR_SCHEDULER_NAME = name
    cfg.SOLVER.STEPS = (40, 80)
    cfg.SOLVER.WARMUP_ITERS = warmup
    cfg.SOLVER.RESCALE_INTERVAL = rescale
    scheduler = build_lr_scheduler(cfg, optimizer())
    lrs = []
    for _ in range(120):
        lrs += scheduler.get_last_lr()
        scheduler.step()
    assert all(0 <= lr <= 0.1 * (1 + 1e-9) for lr in lrs)
    assert len(set(lrs[100:])) == 1


def test_the_momentum_has_a_schedule_of_its_own(cfg):
    cfg.SOLVER.MOMENTUM_SCHEDULE.merge_from_list(
        ["NAME", "WarmupCosineLR", "END", 0.5, "WARMUP_ITERS", 10, "WARMUP_FACTOR", 1.1]
    )
    momenta = factors(cfg, "momentum")
    assert momenta[0] == pytest.approx(1.1)
    assert momenta[50] == pytest.approx(0.75)
    assert factors(cfg) == [1.0] * 100


def test_an_unknown_schedule_names_the_nearest(cfg):
    cfg.SOLVER.LR_SCHEDULER_NAME = "WarmupCosinLR"
    with pytest.raises(ValueError, match=r"'WarmupCosinLR'; did you mean WarmupCosineLR.*known: "):
        build_lr_scheduler(cfg, optimizer())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("BASE_LR_END", 0.2, r"BASE_LR_END must be from 0 to BASE_LR \(0.1\), got 0.2"),
        ("BASE_LR_END", -0.1, "BASE_LR_END must be from 0"),
        ("MAX_ITER", 0, "MAX_ITER must be at least 1, got 0"),
        ("MAX_ITER", "10 min", "expected a number of iterations or '2 epoch', got '10 min'"),
        ("MAX_ITER", "2 epoch", "needs the length of an epoch"),
    ],
)
def test_bad_values_are_refused(cfg, key, value, message):
    cfg.SOLVER.LR_SCHEDULER_NAME = "WarmupCosineLR"
    cfg.SOLVER[key] = value
    with pytest.raises(ValueError, match=message):
        build_lr_scheduler(cfg, optimizer())


def falls_by_half(solver, max_iter):
    """A schedule of a user's own."""
    return LinearParamScheduler(1.0, 0.5 if solver.GAMMA and max_iter == 100 else 0.0)


def test_a_schedule_of_ones_own_is_named_by_its_path_or_in_the_registry(cfg):
    cfg.SOLVER.LR_SCHEDULER_NAME = f"{__name__}:falls_by_half"
    assert factors(cfg)[50] == pytest.approx(0.75)
    SCHEDULE_REGISTRY.register(falls_by_half)
    try:
        cfg.SOLVER.LR_SCHEDULER_NAME = "falls_by_half"
        assert factors(cfg)[50] == pytest.approx(0.75)
        cfg.SOLVER.LR_SCHEDULER_NAME = "falls_by_hal"
        with pytest.raises(ValueError, match=r"SOLVER.LR_SCHEDULER_NAME: .*mean falls_by_half"):
            factors(cfg)
    finally:
        SCHEDULE_REGISTRY._obj_map.pop("falls_by_half")
