"""What detectron2 has in the module of this name."""

from engine.solver.gradient_clipping import maybe_add_gradient_clipping
from engine.solver.optimizer import build_optimizer
from engine.solver.param_groups import get_default_optimizer_params, reduce_param_groups
from engine.solver.schedules import build_lr_scheduler

__all__ = [
    "build_lr_scheduler",
    "build_optimizer",
    "get_default_optimizer_params",
    "maybe_add_gradient_clipping",
    "reduce_param_groups",
]
