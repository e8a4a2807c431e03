import subprocess
import sys
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook

from engine.solver import torch_calls

LABELS = {"Optimizer.zero_grad#SGD.zero_grad", "Optimizer.step#SGD.step"}


@pytest.fixture
def weight() -> torch.nn.Parameter:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    return weight


@pytest.fixture
def sgd(weight):
    return torch.optim.SGD([weight], lr=0.5)


def labels_seen(events) -> set[str]:
    return {event.key for event in events.key_averages() if event.key in LABELS}


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam"])
@pytest.mark.parametrize("options", [{}, {"foreach": True}])
def test_both_do_what_the_methods_do(name, options):
    def weights(step, zero_grad) -> list[torch.Tensor]:
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(4)) for _ in range(3)]
        groups = [{"params": weights[:2]}, {"params": weights[2:], "lr": 0.01}]
        optimizer = getattr(torch.optim, name)(groups, lr=0.1, **options)
        for _ in range(3):
            zero_grad(optimizer)
            assert all(weight.grad is None for weight in weights)
            sum((weight**2).sum() for weight in weights).backward()
            step(optimizer)
        assert not any(weight.grad_fn for weight in weights)
        return weights

    quick = weights(torch_calls.step, torch_calls.zero_grad)
    plain = weights(lambda optimizer: optimizer.step(), lambda optimizer: optimizer.zero_grad())
    assert all(map(torch.equal, quick, plain))


@pytest.mark.parametrize("is_enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_gradients_are_off_in_a_step_and_then_as_they_were(weight, is_enabled, fails):
    seen = []

    class Own(torch.optim.SGD):
        def _init_group(self, *args):
            seen.append(torch.is_grad_enabled())
            if fails:
                raise ZeroDivisionError
            return super()._init_group(*args)

    with torch.set_grad_enabled(is_enabled):
        with pytest.raises(ZeroDivisionError) if fails else nullcontext():
            torch_calls.step(Own([weight], lr=0.5))
        assert torch.is_grad_enabled() is is_enabled
    assert seen == [False]


def test_a_step_that_is_to_be_differentiable_is():
    start = torch.ones(3, requires_grad=True)
    weight = start.clone()
    weight.grad = start**2
    optimizer = torch.optim.SGD([weight], lr=0.5, differentiable=True)
    torch_calls.step(optimizer)
    weight.sum().backward()
    assert start.grad.tolist() == [0, 0, 0]  # 1 - 0.5 * 2


def test_no_label_is_made_unless_a_profiler_runs(sgd, monkeypatch):
    made = Mock(wraps=torch.autograd.profiler.record_function)
    monkeypatch.setattr(torch.autograd.profiler, "record_function", made)
    torch_calls.step(sgd)
    torch_calls.zero_grad(sgd)
    assert not made.called
    sgd.step()
    assert made.called  # so torch would have made one


@pytest.mark.parametrize("profile", [torch.profiler.profile, torch.autograd.profiler.profile])
def test_a_profiler_sees_the_labels(sgd, profile):
    with profile() as seen:
        torch_calls.step(sgd)
        torch_calls.zero_grad(sgd)
    assert labels_seen(seen) == LABELS


def test_hooks_of_an_optimizer_run(sgd, weight):
    calls = []
    sgd.register_step_pre_hook(lambda *_: calls.append("before"))
    handle = sgd.register_step_post_hook(lambda *_: calls.append("after"))
    torch_calls.step(sgd)
    assert calls == ["before", "after"]
    handle.remove()
    torch_calls.step(sgd)
    assert calls == ["before", "after", "before"]
    assert weight.tolist() == [0, 0, 0]


def test_hooks_of_all_optimizers_run(sgd):
    calls = []
    handle = register_optimizer_step_post_hook(lambda *_: calls.append("after"))
    try:
        torch_calls.step(sgd)
    finally:
        handle.remove()
    torch_calls.step(sgd)
    assert calls == ["after"]


def test_methods_of_a_subclass_are_called(weight):
    calls = []

    class Own(torch.optim.SGD):
        def zero_grad(self, set_to_none=True):
            calls.append("zero_grad")
            super().zero_grad(set_to_none=False)

        def step(self, closure=None):
            calls.append("step")
            super().step(closure)

    optimizer = Own([weight], lr=0.5)
    torch_calls.step(optimizer)
    torch_calls.zero_grad(optimizer)
    assert calls == ["step", "zero_grad"]
    assert weight.tolist() == [0.5] * 3
    assert weight.grad.tolist() == [0, 0, 0]


def test_methods_put_on_one_optimizer_are_called(sgd, weight):
    sgd.step, sgd.zero_grad = Mock(), Mock()
    torch_calls.step(sgd)
    torch_calls.zero_grad(sgd)
    assert sgd.step.call_count == sgd.zero_grad.call_count == 1
    assert weight.tolist() == [1, 1, 1]


def test_a_method_put_on_the_class_is_called(sgd, monkeypatch):
    calls = []
    step = torch.optim.SGD.step

    def traced(optimizer, closure=None):
        calls.append("step")
        return step(optimizer, closure)

    traced.__dict__.update(step.__dict__)  # as functools.wraps does
    monkeypatch.setattr(torch.optim.SGD, "step", traced)
    torch_calls.step(sgd)
    assert calls == ["step"]


def test_what_only_looks_like_an_optimizer_is_called():
    optimizer = Mock()
    torch_calls.step(optimizer)
    torch_calls.zero_grad(optimizer)
    assert optimizer.step.call_count == optimizer.zero_grad.call_count == 1


def test_a_schedule_of_torch_knows_that_the_optimizer_stepped(sgd, recwarn):
    schedule = StepLR(sgd, 1)
    torch_calls.step(sgd)
    schedule.step()
    assert not recwarn.list  # torch warns of schedules that step before their optimizer


def test_what_was_put_around_steps_before_the_import_is_called():
    program = """
import functools
import torch
from torch.optim import optimizer
calls = []
def traced(step):
    @functools.wraps(step)
    def call(self):
        calls.append("step")
        return step(self)
    return call
optimizer._use_grad_for_differentiable = traced
class Own(torch.optim.SGD):
    step = traced(torch.optim.SGD.step)
from engine.solver import torch_calls
torch_calls.step(Own([torch.nn.Parameter(torch.ones(1))], lr=0.1))
print(calls)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "['step']\n", done.stderr


def test_what_was_put_in_the_place_of_torchs_before_the_import_is_called():
    program = """
import torch
calls = []
zero_grad, around = torch.optim.Optimizer.zero_grad, torch.optim.Optimizer.profile_hook_step
torch.optim.Optimizer.zero_grad = lambda self: calls.append("zero_grad") or zero_grad(self, False)
torch.optim.Optimizer.profile_hook_step = staticmethod(
    lambda step: lambda self: calls.append("step") or around(step)(self)
)
from engine.solver import torch_calls
sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
torch_calls.step(sgd)
torch_calls.zero_grad(sgd)
print(calls)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "['step', 'zero_grad']\n", done.stderr


def grad_of(loss, weight, backward) -> torch.Tensor:
    weight.grad = None
    backward(loss)
    return weight.grad


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_backward_gives_the_gradients_of_the_method(shape, dtype):
    weight = torch.nn.Parameter(torch.randn(4).to(dtype))
    losses = [weight.exp().prod().reshape(shape) for _ in range(2)]
    quick = grad_of(losses[0], weight, torch_calls.backward)
    assert torch.equal(quick, grad_of(losses[1], weight, torch.Tensor.backward))
    with pytest.raises(RuntimeError, match="second time"):  # the graph is freed
        torch_calls.backward(losses[0])


@pytest.mark.parametrize(
    "make_loss",
    [
        lambda weight: weight * 2,  # more than one number
        lambda weight: weight.sum().detach(),
        lambda weight: weight.sum() * 1j,
        lambda weight: 3.0,
    ],
)
def test_backward_of_what_is_no_loss_fails_as_the_method_does(weight, make_loss):
    def error_of(backward) -> tuple[type, str]:
        with pytest.raises((RuntimeError, AttributeError)) as raised:
            backward(make_loss(weight))
        return raised.type, str(raised.value)

    assert error_of(torch_calls.backward) == error_of(lambda loss: loss.backward())


def test_backward_goes_through_whatever_watches_tensors(weight):
    calls = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            calls.append(function.__name__)
            return super().__torch_function__(function, types, args, kwargs or {})

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            calls.append(f"{function.__name__} in a mode")
            return function(*args, **(kwargs or {}))

    torch_calls.backward(weight.sum().as_subclass(Watched))
    with Mode():
        torch_calls.backward(weight.sum())
    assert {"backward", "backward in a mode"} <= set(calls)


@pytest.mark.parametrize("owner", [torch.Tensor, torch.autograd])
def test_a_backward_that_was_put_in_the_place_of_torchs_is_called(weight, owner, monkeypatch):
    patched = Mock(wraps=owner.backward)
    monkeypatch.setattr(owner, "backward", lambda *args, **kwargs: patched(*args, **kwargs))
    torch_calls.backward((weight * weight).sum())
    assert patched.call_count == 1
    assert weight.grad.tolist() == [3, 3, 3]


def test_backward_names_the_operation_where_anomalies_are_looked_for(weight):
    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match="Error detected in SqrtBackward0"),
        pytest.raises(RuntimeError, match=r"SqrtBackward0.*nan"),
    ):
        torch_calls.backward((weight * 0).sqrt().sum() * 0)
