"""The three calls into torch that each step makes, without what nobody asks for in most of them.

An optimizer's `zero_grad` and `step` each open a label for the profiler, which costs more than all
that the engine does around a step. As torch does in other places, it is left out where no profiler
runs. `step` also switches gradients off and on by way of objects, and tells the compiler, at a
tenth of that price: here they are just switched. `backward` takes as long to find out what it was
given as to go through a small graph. Whatever stands in the place of torch's own methods, hooks of
the optimizer, and tensors of other kinds get the calls as they are.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import graph, profiler
from torch.optim import Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    _use_grad_for_differentiable,
)
from torch.overrides import has_torch_function_unary


def _code_of(function: Any) -> Any:
    return getattr(function, "__code__", None)


_ZERO_GRAD = Optimizer.zero_grad
_BACKWARD = Tensor.backward
_BACKWARD_OF_MANY = torch.autograd.backward  # which it calls
_RUN_BACKWARD = getattr(graph, "_engine_run_backward", None)  # which that one calls
# What torch puts around the `step` of each class: a label, and the hooks of a step.
_AROUND_STEP = _code_of(Optimizer.profile_hook_step(Optimizer.step))
# What most of its classes have inside that: gradients are off, unless a step is differentiable.
_WITHOUT_GRAD = _code_of(_use_grad_for_differentiable(Optimizer.step))
# A program may have put functions of its own in their places before this is imported.
_ARE_TORCHS = all(
    code is not None and code.co_filename.startswith(os.path.dirname(torch.__file__))
    for code in (
        _AROUND_STEP,
        _WITHOUT_GRAD,
        *map(_code_of, (_ZERO_GRAD, _BACKWARD, _BACKWARD_OF_MANY, _RUN_BACKWARD)),
    )
)


def zero_grad(optimizer: Optimizer) -> None:
    """`optimizer.zero_grad()`."""
    if (
        not _ARE_TORCHS
        or profiler._is_profiler_enabled
        or getattr(type(optimizer), "zero_grad", None) is not _ZERO_GRAD
        or "zero_grad" in vars(optimizer)
    ):
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def backward(loss: Tensor) -> None:
    """`loss.backward()`."""
    if (
        not _ARE_TORCHS
        or type(loss) is not Tensor
        or Tensor.backward is not _BACKWARD
        or torch.autograd.backward is not _BACKWARD_OF_MANY
        or torch._C._are_functorch_transforms_active()
        or has_torch_function_unary(loss)  # a mode that is on
        or not (loss.requires_grad and loss.numel() == 1 and loss.is_floating_point())
    ):
        loss.backward()
    else:
        gradient = torch.ones_like(loss)
        graph._engine_run_backward(
            (loss,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True
        )


def step(optimizer: Optimizer) -> None:
    """`optimizer.step()`."""
    if (
        not _ARE_TORCHS
        or profiler._is_profiler_enabled
        or _code_of(getattr(type(optimizer), "step", None)) is not _AROUND_STEP
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or not _is_as_its_class(optimizer)
    ):
        optimizer.step()
    else:
        _step_without_grad(optimizer, type(optimizer).step.__wrapped__)  # type: ignore[attr-defined]


def _step_without_grad(optimizer: Optimizer, step: Callable[[Optimizer], Any]) -> None:
    is_known = _code_of(step) is _WITHOUT_GRAD and not torch.compiler.is_compiling()
    if not is_known or optimizer.defaults.get("differentiable"):
        step(optimizer)
        return
    was_enabled = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        step.__wrapped__(optimizer)  # type: ignore[attr-defined]
    finally:
        torch._C._set_grad_enabled(was_enabled)


def _is_as_its_class(optimizer: Optimizer) -> bool:
    own: Any = vars(optimizer).get("step")
    if own is None:
        return True
    is_wrapped = getattr(own, "__wrapped__", None) is type(optimizer).step
    if is_wrapped and hasattr(own, "_wrapped_by_lr_sched"):
        optimizer._opt_called = True  # type: ignore[attr-defined]  # all that a schedule adds
        return True
    return False
