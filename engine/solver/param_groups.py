"""Parameter groups for an optimizer: options for every parameter, equal ones merged, a table."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate
from torch import nn
from torch.optim import Optimizer

from engine.solver.param_rules import (
    EMBEDDING_TYPES,
    NORM_TYPES,
    NamedParameter,
    ParamRule,
    iterate_parameters,
    settings_from_rules,
)

ParamGroups = list[dict[str, Any]]


def get_default_optimizer_params(
    model: nn.Module,
    base_lr: float | None = None,
    weight_decay: float | None = None,
    weight_decay_norm: float | None = None,
    bias_lr_factor: float | None = 1.0,
    weight_decay_bias: float | None = None,
    lr_factor_func: Callable[[str], float] | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    weight_decay_embed: float | None = None,
    rules: Sequence[ParamRule] = (),
) -> ParamGroups:
    """Groups of the model's trainable parameters, each parameter once, for any torch optimizer.

    None leaves a value to the optimizer, or, for norm, bias and embedding, to `weight_decay`.
    `lr_factor_func` gives a factor of the LR for a parameter's full name; `overrides` gives
    options for a parameter's last name, as in `{"bias": {"weight_decay": 0.0}}`. What all these
    gave, `rules` then multiply; their options come last (`freeze_parameters` sees to FREEZE).
    """
    own_bias_settings = bias_lr_factor not in (None, 1.0) or weight_decay_bias is not None
    if own_bias_settings and "bias" in (overrides or {}):
        raise ValueError(
            "overrides has 'bias' beside bias_lr_factor or weight_decay_bias: give one of them"
        )

    def options_of(named: NamedParameter) -> dict[str, Any]:
        last_name = named.name.rpartition(".")[2]
        decay = weight_decay
        if isinstance(named.module, NORM_TYPES) and weight_decay_norm is not None:
            decay = weight_decay_norm
        if isinstance(named.module, EMBEDDING_TYPES) and weight_decay_embed is not None:
            decay = weight_decay_embed
        lr_factor = 1.0 if lr_factor_func is None else lr_factor_func(named.name)
        if last_name == "bias":
            lr_factor *= 1.0 if bias_lr_factor is None else bias_lr_factor
            decay = decay if weight_decay_bias is None else weight_decay_bias
        options = {
            "lr": _scaled(base_lr, lr_factor, "base_lr"),
            "weight_decay": decay,
            **(overrides or {}).get(last_name, {}),
        }
        settings = settings_from_rules(rules, named)
        settings.pop("freeze", None)
        options["lr"] = _scaled(options["lr"], settings.pop("lr_mult", 1.0), "base_lr")
        options["weight_decay"] = _scaled(
            options["weight_decay"], settings.pop("decay_mult", 1.0), "weight_decay"
        )
        options.update(settings)
        return {key: value for key, value in options.items() if value is not None}

    return reduce_param_groups(
        {"params": [named.parameter], **options_of(named)}
        for named in iterate_parameters(model)
        if named.parameter.requires_grad
    )


def reduce_param_groups(params: Iterable[Mapping[str, Any]]) -> ParamGroups:
    """The same parameters in as few groups as their options allow, in the order they came.

    Of a parameter that comes more than once, later options win over earlier ones.
    """
    options_of: dict[nn.Parameter, dict[str, Any]] = {}
    for group in params:
        options = {key: _plain(value) for key, value in group.items() if key != "params"}
        parameters = group["params"]
        for parameter in [parameters] if isinstance(parameters, nn.Parameter) else parameters:
            options_of.setdefault(parameter, {}).update(options)
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for parameter, options in options_of.items():
        key = tuple(sorted(options.items(), key=lambda item: item[0]))
        merged.setdefault(key, {"params": [], **options})["params"].append(parameter)
    return list(merged.values())


def param_group_table(optimizer: Optimizer, model: nn.Module) -> str:
    """A table of the optimizer's groups, for the log at the start of a run."""
    groups = optimizer.param_groups
    names = {named.parameter: named.name for named in iterate_parameters(model)}
    differing = [
        key
        for key in groups[0]
        if key not in ("params", "lr", "initial_lr", "weight_decay")
        and any(group.get(key) != groups[0][key] for group in groups)
    ]

    def row(label: object, parameters: list[nn.Parameter], *options: str) -> list[str]:
        elements = sum(parameter.numel() for parameter in parameters)
        example = names.get(parameters[0], "?") if parameters else ""
        return [str(label), str(len(parameters)), f"{elements:,}", *options, example]

    rows = []
    for number, group in enumerate(groups):
        lr = float(group.get("initial_lr", group["lr"]))
        decay = f"{group['weight_decay']:.6g}" if "weight_decay" in group else ""
        extra = ", ".join(f"{key}={group.get(key)}" for key in differing)
        rows.append(row(number, group["params"], f"{lr:.6g}", decay, extra))
    optimized = {parameter for group in groups for parameter in group["params"]}
    if rest := [parameter for parameter in names if parameter not in optimized]:
        rows.append(row("not trained", rest, "", "", ""))
    headers = ["group", "tensors", "parameters", "lr", "weight decay", "extra", "first parameter"]
    align = ["left", "right", "right", "right", "right", "left", "left"]
    return tabulate(rows, headers, "pipe", disable_numparse=True, colalign=align)


def _scaled(value: float | None, factor: float, name: str) -> float | None:
    if value is None and factor != 1.0:
        raise ValueError(f"a multiplier of {factor} needs {name} to multiply, and it is None")
    return value if value is None or factor == 1.0 else value * factor


def _plain(value: Any) -> Any:
    """Lists as tuples, which can be compared as parts of a key."""
    return tuple(value) if isinstance(value, list) else value
