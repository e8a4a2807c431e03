"""The two calls into the optimizer that each step makes, without labels that nobody reads.

torch's `zero_grad` and `step` each open a label for the profiler, which costs more than all that
the engine does around a step. As torch does in other places, it is left out where no profiler runs.
Whatever stands in the place of torch's own methods, and hooks of the optimizer, run as they are.
"""

from typing import Any

from torch.autograd import profiler
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

TORCH_ZERO_GRAD = Optimizer.zero_grad
# The code that torch puts around the `step` of each class: a label, and the hooks of a step.
TORCH_AROUND_STEP = Optimizer.profile_hook_step(lambda optimizer: None).__code__


def zero_grad(optimizer: Optimizer) -> None:
    """`optimizer.zero_grad()`."""
    if (
        profiler._is_profiler_enabled
        or getattr(type(optimizer), "zero_grad", None) is not TORCH_ZERO_GRAD
        or "zero_grad" in vars(optimizer)
    ):
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def step(optimizer: Optimizer) -> None:
    """`optimizer.step()`."""
    labelled: Any = getattr(type(optimizer), "step", None)
    if (
        profiler._is_profiler_enabled
        or getattr(labelled, "__code__", None) is not TORCH_AROUND_STEP
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or not _is_as_its_class(optimizer, labelled)
    ):
        optimizer.step()
    else:
        labelled.__wrapped__(optimizer)


def _is_as_its_class(optimizer: Optimizer, method: Any) -> bool:
    own = vars(optimizer).get("step")
    if own is None:
        return True
    if getattr(own, "__wrapped__", None) is method and hasattr(own, "_wrapped_by_lr_sched"):
        optimizer._opt_called = True  # type: ignore[attr-defined]  # all that a schedule adds
        return True
    return False
