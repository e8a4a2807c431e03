"""Gradient clipping, by norm or by value, over the model, each group or each parameter."""

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import torch
import torch.distributed as dist
from fvcore.common.config import CfgNode
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

from engine.config import naming
from engine.parallel.fsdp import is_sharded_tensor

ClipBy = Literal["norm", "value"]
ClipScope = Literal["model", "group", "parameter"]
T = TypeVar("T", Optimizer, type[Optimizer])


@dataclass(frozen=True)
class GradientClipper:
    """Clip the gradients an optimizer is about to use; return their norm before clipping.

    `scope` says what shares one norm: all parameters, those of each group, or each parameter by
    itself. By value, every element is cut to [-maximum, maximum] and the norm returned is the
    2-norm. Nothing waits for the device, so non-finite gradients are not refused.
    """

    maximum: float
    by: ClipBy = "norm"
    scope: ClipScope = "model"
    norm_type: float = 2.0

    def __post_init__(self) -> None:
        for name, value, known in (
            ("by", self.by, get_args(ClipBy)),
            ("scope", self.scope, get_args(ClipScope)),
        ):
            if value not in known:
                raise ValueError(
                    f"gradient clipping: {name} is {value!r}, not one of {', '.join(known)}"
                )
        for name, number in (("maximum", self.maximum), ("norm_type", self.norm_type)):
            if not number > 0:
                raise ValueError(f"gradient clipping: {name} must be above 0, got {number}")

    def __call__(self, optimizer: Optimizer) -> Tensor:
        groups = [
            # torch finds no largest element of an empty one
            [p for p in group["params"] if p.grad is not None and p.grad.numel()]
            for group in optimizer.param_groups
        ]
        groups = [group for group in groups if group]
        parameters = [parameter for group in groups for parameter in group]
        if not parameters:
            return torch.zeros(())
        if self.by == "value":
            norm = _total_norm(torch._foreach_norm([p.grad for p in parameters], 2.0), 2.0)
            clip_grad_value_(parameters, self.maximum)
            return norm
        if self.scope == "model":
            groups = [parameters]
        elif self.scope == "parameter":
            groups = [[parameter] for parameter in parameters]
        norms = [_clip_norm(group, self.maximum, self.norm_type) for group in groups]
        return _total_norm(norms, self.norm_type)


def build_gradient_clipper(cfg: CfgNode) -> GradientClipper | None:
    """What `SOLVER.CLIP_GRADIENTS` describes, or None where it is off.

    CLIP_TYPE "full_model" is "norm" over the whole model, whatever SCOPE says.
    """
    node = cfg.SOLVER.CLIP_GRADIENTS
    if not node.ENABLED:
        return None
    by, scope = node.CLIP_TYPE, node.SCOPE
    if by == "full_model":
        by, scope = "norm", "model"
    with naming("SOLVER.CLIP_GRADIENTS"):
        return GradientClipper(float(node.CLIP_VALUE), by, scope, float(node.NORM_TYPE))


def maybe_add_gradient_clipping(cfg: CfgNode, optimizer: T) -> T:
    """The optimizer, or class of optimizers, that clips as `SOLVER.CLIP_GRADIENTS` says before each
    step. `build_optimizer` adds it, for loops of one's own.

    A trainer with `clip_gradients`, as DefaultTrainer has it from the config, clips in its place
    from its first step on. A copy of an optimizer clips no more.
    """
    if (clipper := build_gradient_clipper(cfg)) is None:
        return optimizer
    if isinstance(optimizer, type):
        return _clipping_class(optimizer, clipper)
    _clip_before_step(optimizer, clipper)
    return optimizer


def leave_clipping_to_trainer(optimizer: Optimizer) -> None:
    """Take back what `maybe_add_gradient_clipping` has added."""
    if (hook := vars(optimizer).pop("_clipping", None)) is not None:
        hook.remove()


def _clipping_class(base: Any, clipper: GradientClipper) -> Any:
    @functools.wraps(base.__init__)
    def init(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, *args, **kwargs)
        _clip_before_step(self, clipper)

    return type(f"{base.__name__}WithClipping", (base,), {"__init__": init})


def _clip_before_step(optimizer: Optimizer, clipper: GradientClipper) -> None:
    def clip(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if (scale := getattr(optimizer, "grad_scale", None)) is not None:
            # A fused one has been left to undo the scale of a GradScaler in its step.
            optimizer.grad_scale = None  # type: ignore[attr-defined]
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(scale)
        clipper(optimizer)

    leave_clipping_to_trainer(optimizer)  # once is enough
    optimizer._clipping = optimizer.register_step_pre_hook(clip)  # type: ignore[attr-defined]


def _clip_norm(parameters: list[Tensor], maximum: float, norm_type: float) -> Tensor:
    if not is_sharded_tensor(parameters[0].grad):
        return clip_grad_norm_(parameters, maximum, norm_type)
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    gradients = [p.grad for p in parameters if p.grad is not None]
    if norm_type == math.inf:
        norm = _largest_of_shards(gradients)
    else:
        # Made whole in between, on the device where ranks can talk: weights may be offloaded.
        norm = _whole(get_total_norm(gradients, norm_type))
    clip_grads_with_norm_(parameters, maximum, norm.to(parameters[0].device))
    return norm


def _largest_of_shards(gradients: list[Tensor]) -> Tensor:
    """The infinity norm; torch refuses it where a rank has nothing of a parameter."""
    parts = [gradient.to_local() for gradient in gradients]  # type: ignore[attr-defined]
    largest = [part.abs().amax() for part in parts if part.numel()]
    mesh = gradients[0].device_mesh  # type: ignore[attr-defined]
    norm = torch.stack(largest or [parts[0].new_zeros(())]).amax().to(mesh.device_type)
    for group in mesh.get_all_groups():
        dist.all_reduce(norm, dist.ReduceOp.MAX, group=group)
    return norm


def _total_norm(norms: list[Tensor] | tuple[Tensor, ...], norm_type: float) -> Tensor:
    """The norm of the whole from the norms of its parts, a plain tensor also for sharded ones."""
    norm = norms[0]
    if len(norms) > 1:
        stacked = torch.stack([part.to(norm.device) for part in norms])
        norm = torch.linalg.vector_norm(stacked, norm_type)
    return _whole(norm)


def _whole(norm: Tensor) -> Tensor:
    if not is_sharded_tensor(norm):
        return norm
    return norm.to(norm.device_mesh.device_type).full_tensor()  # type: ignore[attr-defined]
