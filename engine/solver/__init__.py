"""Optimizers, parameter rules, gradient clipping and learning-rate schedules."""

from engine.solver.gradient_clipping import (
    GradientClipper,
    build_gradient_clipper,
    maybe_add_gradient_clipping,
)
from engine.solver.layer_decay import LayerDecay
from engine.solver.loss_scale import ConstantGradScaler, build_grad_scaler
from engine.solver.lr_scheduler import LRMultiplier, LRScheduler, WarmupParamScheduler
from engine.solver.optimizer import OPTIMIZER_REGISTRY, build_optimizer
from engine.solver.param_groups import (
    get_default_optimizer_params,
    param_group_table,
    reduce_param_groups,
)
from engine.solver.param_rules import ParamRule, freeze_parameters, parse_param_rules
from engine.solver.schedules import SCHEDULE_REGISTRY, build_lr_scheduler
from engine.solver.warmup import WarmupCosineLR, WarmupMultiStepLR

__all__ = [
    "OPTIMIZER_REGISTRY",
    "SCHEDULE_REGISTRY",
    "ConstantGradScaler",
    "GradientClipper",
    "LRMultiplier",
    "LRScheduler",
    "LayerDecay",
    "ParamRule",
    "WarmupCosineLR",
    "WarmupMultiStepLR",
    "WarmupParamScheduler",
    "build_grad_scaler",
    "build_gradient_clipper",
    "build_lr_scheduler",
    "build_optimizer",
    "freeze_parameters",
    "get_default_optimizer_params",
    "maybe_add_gradient_clipping",
    "param_group_table",
    "parse_param_rules",
    "reduce_param_groups",
]
