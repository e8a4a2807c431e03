"""Optimizers from a config: any of torch.optim by name, with its arguments and parameter rules."""

import inspect
import logging
from collections.abc import Mapping
from typing import Any

import torch
from fvcore.common.config import CfgNode
from torch import nn
from torch.optim import Optimizer

from engine.config import ConfigError, naming, naming_unknown
from engine.parallel.fsdp import is_sharded
from engine.solver.gradient_clipping import maybe_add_gradient_clipping
from engine.solver.layer_decay import LayerDecay
from engine.solver.param_groups import (
    ParamGroups,
    get_default_optimizer_params,
    reduce_param_groups,
)
from engine.solver.param_rules import (
    ParamRule,
    freeze_parameters,
    iterate_parameters,
    parse_param_rules,
    warn_about_idle_rules,
)
from engine.utils.registry import Registry, locate
from engine.utils.suggest import hint_at
from engine.utils.wrapping import plain_names

logger = logging.getLogger(__name__)

OPTIMIZER_REGISTRY = Registry("OPTIMIZER")
"""Optimizers of your own, for SOLVER.OPTIMIZER.NAME."""

# What the optimizers of torch keep for each element of a parameter.
PER_ELEMENT = {"acc_delta", "ax", "exp_avg", "exp_avg_sq", "exp_inf", "grad_avg", "max_exp_avg_sq"}
PER_ELEMENT |= {"momentum_buffer", "prev", "square_avg", "step_size", "sum"}

# Options of an optimizer that say how it computes, not what.
IMPLEMENTATION = {"capturable", "differentiable", "foreach", "fused"}


def build_optimizer(cfg: CfgNode, model: nn.Module) -> Optimizer:
    """The optimizer that `SOLVER` describes, over the model's trainable parameters.

    It clips gradients as `SOLVER.CLIP_GRADIENTS` says, unless a trainer does. Freezes what
    `SOLVER.PARAM_RULES` say to freeze. Text as `SOLVER.OPTIMIZER` is its NAME.
    """
    solver, options = cfg.SOLVER, cfg.SOLVER.OPTIMIZER
    options = {"NAME": options} if isinstance(options, str) else options
    with naming("SOLVER.PARAM_RULES"):
        rules = parse_param_rules(solver.PARAM_RULES)
    optimizer_class = get_optimizer_class(options["NAME"])
    arguments = _arguments(solver, options, optimizer_class)
    for rule in rules:
        _check_arguments(optimizer_class, rule.options, f"SOLVER.PARAM_RULES: {rule}")
    freeze_parameters(model, rules)
    warn_about_idle_rules(model, rules)
    lr_factor_func = None
    if solver.LAYER_DECAY.ENABLED:
        lr_factor_func = _layer_decay(solver.LAYER_DECAY, model).__getitem__
        if solver.LAYER_DECAY.NO_DECAY_1D:
            rules = [ParamRule(type="flat", decay_mult=0.0), *rules]
    groups = get_default_optimizer_params(
        model,
        base_lr=solver.BASE_LR,
        weight_decay=solver.WEIGHT_DECAY,
        weight_decay_norm=solver.WEIGHT_DECAY_NORM,
        bias_lr_factor=solver.BIAS_LR_FACTOR,
        weight_decay_bias=solver.WEIGHT_DECAY_BIAS,
        weight_decay_embed=solver.WEIGHT_DECAY_EMBED,
        lr_factor_func=lr_factor_func,
        rules=rules,
    )
    if not groups:
        raise ValueError(
            f"{type(model).__name__} has no trainable parameter: all are frozen, by the model or "
            "by SOLVER.PARAM_RULES, or there are none"
        )
    if "weight_decay" not in _accepted(optimizer_class):
        groups = _without_weight_decay(groups, optimizer_class)
    if arguments.get("fused") and optimizer_class is torch.optim.SGD and is_sharded(model):
        logger.warning(
            "SOLVER.OPTIMIZER.fused is not used: torch cannot do it with sharded weights"
        )
        arguments["fused"] = False
    with naming(f"SOLVER.OPTIMIZER: {optimizer_class.__name__}"):
        optimizer = optimizer_class(groups, **arguments)
    return maybe_add_gradient_clipping(cfg, optimizer)


def get_optimizer_class(name: str) -> type[Optimizer]:
    """The optimizer of that name in torch.optim or the registry, or at an import path."""
    known = {
        key: value
        for key, value in vars(torch.optim).items()
        if inspect.isclass(value) and issubclass(value, Optimizer) and value is not Optimizer
    }
    known |= dict(OPTIMIZER_REGISTRY)
    if ":" in name or "." in name:
        with naming_unknown("SOLVER.OPTIMIZER.NAME"):
            found = locate(name)
        if not (inspect.isclass(found) and issubclass(found, Optimizer)):
            raise ConfigError(f"SOLVER.OPTIMIZER.NAME: {name} is no class of torch's Optimizer")
        return found
    if name not in known:
        raise ConfigError(
            f"SOLVER.OPTIMIZER.NAME: torch.optim has no optimizer {name!r}{hint_at(name, known)} "
            f"(known: {', '.join(sorted(known))})"
        )
    return known[name]


def trained_names(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """The names of the optimizer's parameters in the model, in its order; "" for others."""
    plain = plain_names(model)
    names = {parameter: plain(name) for name, parameter in model.named_parameters()}
    return [names.get(p, "") for group in optimizer.param_groups for p in group["params"]]


def load_optimizer_state(
    optimizer: Optimizer, state_dict: dict[str, Any], renamed: Mapping[str, str] | None = None
) -> None:
    """`optimizer.load_state_dict`, with a clear error where the state is that of another one.

    As in torch, the options of the groups are those that were saved; a warning says where they are
    others. `renamed` has parameters of the saved run in whose place there are others now.
    """
    made_with = [dict(group) for group in optimizer.param_groups]
    reason = _misfit(optimizer, state_dict["state"])  # some optimizers crash on it in their step
    for was, is_now in (renamed or {}).items():
        reason = reason or f"it has one of {was} where there is {is_now} now"
    options = set(optimizer.defaults)  # torch adds one of its own while it loads
    try:
        if not reason:
            optimizer.load_state_dict(_with_own_implementation(optimizer, state_dict))
            lacking = options - optimizer.param_groups[0].keys()
            reason = f"it lacks {', '.join(sorted(lacking))}" if lacking else ""
    except (KeyError, ValueError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
    if reason:
        raise ConfigError(
            f"the saved state does not fit {type(optimizer).__name__} with its "
            f"{len(optimizer.param_groups)} groups of parameters ({reason}): resume with the "
            "model, optimizer and rules of the saved run, or begin a new run with its weights"
        ) from None
    if kept := _kept_options(made_with, optimizer.param_groups):
        logger.warning(
            "The optimizer goes on with the options that were saved, not those it was made with: "
            "%s. For others begin a new run with the saved weights",
            kept,
        )


def _kept_options(made_with: ParamGroups, loaded: ParamGroups) -> str:
    """Where the first group that differs does so, but for what a schedule sets in each step."""
    for own, saved in zip(made_with, loaded, strict=False):
        keys = own.keys() & saved.keys() - {"params", "lr"}
        if any("_momentum" in key for key in own):  # ours notes an initial one, torch's a largest
            keys -= {"momentum", "betas"}
        pairs = [(key, repr(saved[key]), repr(own[key])) for key in sorted(keys)]
        if kept := [f"{key} {was}, not {is_now}" for key, was, is_now in pairs if was != is_now]:
            return "; ".join(kept).replace("initial_lr", "lr")
    return ""


def _with_own_implementation(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """The state, without how the saved run computed: sharded weights, say, cannot be fused."""
    saved, groups = state_dict["param_groups"], optimizer.param_groups
    if len(saved) != len(groups):
        return state_dict
    own = [{key: group[key] for key in IMPLEMENTATION & group.keys()} for group in groups]
    merged = [{**one, **other} for one, other in zip(saved, own, strict=True)]
    return {**state_dict, "param_groups": merged}


def _misfit(optimizer: Optimizer, states: Mapping[Any, Mapping[str, Any]]) -> str:
    """What of the saved states is not of the shape of its parameter; "" if nothing."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, parameter in enumerate(parameters):
        for key, value in states.get(number, {}).items():
            if key in PER_ELEMENT and value is not None and value.shape != parameter.shape:
                was, is_now = tuple(value.shape), tuple(parameter.shape)
                return f"it has a {key} of shape {was} for a parameter of shape {is_now}"
    return ""


def _arguments(
    solver: CfgNode, options: Mapping[str, Any], optimizer_class: type[Optimizer]
) -> dict[str, Any]:
    """The optimizer's arguments beside its groups."""
    given = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in options.items()
        # None takes back what a base config gives: another optimizer may not know it.
        if key != "NAME" and not (value is None and key not in _accepted(optimizer_class))
    }
    _check_arguments(optimizer_class, given, "SOLVER.OPTIMIZER")
    for key, home in (("lr", "BASE_LR"), ("weight_decay", "WEIGHT_DECAY")):
        if key in given:
            raise ConfigError(f"SOLVER.OPTIMIZER: set {key} as SOLVER.{home}, and only there")
    if issubclass(optimizer_class, torch.optim.SGD):
        given = {"momentum": solver.MOMENTUM, "nesterov": solver.NESTEROV, **given}
    return {"lr": solver.BASE_LR, **given}


def _check_arguments(
    optimizer_class: type[Optimizer], arguments: Mapping[str, Any], place: str
) -> None:
    accepted = _accepted(optimizer_class)
    for key in arguments:
        if key not in accepted:
            raise ConfigError(
                f"{place}: {optimizer_class.__name__} has no argument {key!r}"
                f"{hint_at(key, accepted)} (it accepts: {', '.join(accepted)})"
            )


def _accepted(optimizer_class: type[Optimizer]) -> list[str]:
    known: dict[str, None] = {}
    for one in inspect.getmro(optimizer_class):
        parameters = inspect.signature(one).parameters
        known |= dict.fromkeys(parameters)
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            break  # else it passes others on to its base
    return [name for name in known if name not in ("params", "args", "kwargs")]


def _layer_decay(node: CfgNode, model: nn.Module) -> dict[str, float]:
    with naming("SOLVER.LAYER_DECAY"):
        decay = LayerDecay(node.RATE, node.NUM_LAYERS, node.TYPE, node.PREFIX, node.PATTERN)
        return decay.factors(named.name for named in iterate_parameters(model))


def _without_weight_decay(groups: ParamGroups, optimizer_class: type[Optimizer]) -> ParamGroups:
    if any(group.get("weight_decay") for group in groups):
        name = optimizer_class.__name__
        logger.warning("%s has no weight decay: SOLVER.WEIGHT_DECAY* has no effect", name)
    return reduce_param_groups(
        {key: value for key, value in group.items() if key != "weight_decay"} for group in groups
    )
