import pytest
import torch

from engine.solver import WarmupCosineLR, WarmupMultiStepLR
from engine.solver.lr_scheduler import _get_warmup_factor_at_iter


def rates(make, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(optimizer)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_steps_after_a_linear_warm_up():
    found = rates(lambda opt: WarmupMultiStepLR(opt, [5, 7], 0.1, 0.2, warmup_iters=4), 8)
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 0.1, 0.1, 0.01])


def test_a_cosine_after_a_constant_warm_up():
    found = rates(lambda opt: WarmupCosineLR(opt, 4, 0.5, 2, warmup_method="constant"), 6)
    assert found == pytest.approx([0.5, 0.5 * 0.8535534, 0.5, 0.1464466, 0.0, 0.0])


def test_a_schedule_of_ones_own_asks_for_the_factor_of_the_warm_up():
    factors = [_get_warmup_factor_at_iter("linear", step, 4, 0.2) for step in range(6)]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"milestones must rise, got \[7, 5\]"):
        rates(lambda opt: WarmupMultiStepLR(opt, [7, 5]), 1)
    with pytest.raises(ValueError, match="'linear' or 'constant', got 'cubic'"):
        rates(lambda opt: WarmupCosineLR(opt, 4, warmup_method="cubic"), 1)
