r"""Parameter rules: who learns faster, decays less or is frozen, by name or by type.

    PARAM_RULES:
      - {TYPE: norm, DECAY_MULT: 0.0}
      - {MATCH: ^backbone\., LR_MULT: 0.1}
      - {MATCH: ^backbone\.stem\., FREEZE: true}
      - {MATCH: head, LR_MULT: 10.0, betas: [0.9, 0.95]}

All rules that match a parameter apply in order, and a later one wins over an earlier one in what
both of them set.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.parallel import DistributedDataParallel

from engine.config import ConfigError
from engine.utils.suggest import did_you_mean, hint_at
from engine.utils.wrapping import plain_names

logger = logging.getLogger(__name__)

NORM_TYPES = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm, nn.RMSNorm)
EMBEDDING_TYPES = (nn.Embedding, nn.EmbeddingBag)
_RULE_KEYS = ("MATCH", "TYPE", "LR_MULT", "DECAY_MULT", "FREEZE")


@dataclass(frozen=True)
class NamedParameter:
    """A parameter with its full name and the module that owns it."""

    name: str
    module: nn.Module
    parameter: nn.Parameter

    @property
    def types(self) -> set[str]:
        """All that a rule's `type` may call it: its kinds, and the classes of its module."""
        module = self.module
        kinds = {
            "norm": isinstance(module, NORM_TYPES),
            "embedding": isinstance(module, EMBEDDING_TYPES),
            "depthwise": isinstance(module, _ConvNd) and module.groups == module.in_channels > 1,
            "bias": self.name.rpartition(".")[2] == "bias",
            "flat": self.parameter.ndim <= 1,
        }
        classes = {cls.__name__ for cls in type(module).__mro__}
        return classes | {kind for kind, holds in kinds.items() if holds}


@dataclass(frozen=True)
class ParamRule:
    """What to do with the parameters whose name matches and whose type fits.

    `match` is a regular expression searched for in the parameter's full name, so that plain
    `backbone` finds it anywhere. `type` is norm, bias, embedding, depthwise, flat (at most one
    dimension) or the class name of the module that owns the parameter. `options` go into the
    optimizer's parameter group as they are.
    """

    match: str = ""
    type: str = ""
    lr_mult: float | None = None
    decay_mult: float | None = None
    freeze: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            re.compile(self.match)
        except (re.error, TypeError) as error:
            raise ValueError(
                f"{self}: MATCH {self.match!r} is not a regular expression: {error}"
            ) from None
        for key, value in (("LR_MULT", self.lr_mult), ("DECAY_MULT", self.decay_mult)):
            if value is not None and not (isinstance(value, int | float) and value >= 0):
                raise ValueError(f"{self}: {key} must be a number from 0 up, got {value!r}")
        if self.freeze not in (None, True, False):
            raise ValueError(f"{self}: FREEZE must be true or false, got {self.freeze!r}")
        if not self.settings:
            raise ValueError(
                f"{self} sets nothing: give it LR_MULT, DECAY_MULT, FREEZE or an option of the "
                "optimizer"
            )

    def __str__(self) -> str:
        parts = (("MATCH", self.match), ("TYPE", self.type))
        return f"rule {{{', '.join(f'{key}: {value}' for key, value in parts if value)}}}"

    @property
    def settings(self) -> dict[str, Any]:
        """What the rule sets, by name; what it leaves alone is absent."""
        own = {"lr_mult": self.lr_mult, "decay_mult": self.decay_mult, "freeze": self.freeze}
        return {key: value for key, value in own.items() if value is not None} | dict(self.options)

    def matches(self, named: NamedParameter) -> bool:
        name_fits = re.search(self.match, named.name) is not None
        return name_fits and (not self.type or self.type in named.types)


def parse_param_rules(rules: Iterable[Mapping[str, Any]]) -> list[ParamRule]:
    """Read `SOLVER.PARAM_RULES`. Keys in lower case are options of the optimizer."""
    parsed = []
    for rule in rules:
        if not isinstance(rule, Mapping):
            raise ValueError(f"a rule is like {{MATCH: ^backbone, LR_MULT: 0.1}}, got {rule!r}")
        others = [key for key in rule if key not in _RULE_KEYS]
        unknown = [key for key in others if not key.islower() or key.upper() in _RULE_KEYS]
        if unknown:
            raise ConfigError(
                f"SOLVER.PARAM_RULES: unknown key {unknown[0]} in {dict(rule)}"
                f"{hint_at(unknown[0], _RULE_KEYS)} (known: {', '.join(_RULE_KEYS)}, and "
                "options of the optimizer in lower case)"
            )
        if "MATCH" not in rule and "TYPE" not in rule:
            raise ValueError(f"SOLVER.PARAM_RULES: {dict(rule)} needs MATCH, TYPE or both")
        fields = {key.lower(): rule[key] for key in _RULE_KEYS if key in rule}
        parsed.append(ParamRule(**fields, options={key: rule[key] for key in others}))
    return parsed


def settings_from_rules(rules: Iterable[ParamRule], named: NamedParameter) -> dict[str, Any]:
    """What the rules say together about one parameter."""
    settings: dict[str, Any] = {}
    for rule in rules:
        if rule.matches(named):
            settings.update(rule.settings)
    return settings


def freeze_parameters(model: nn.Module, rules: Sequence[ParamRule]) -> None:
    """Set `requires_grad` of the parameters that rules freeze (or, with FREEZE false, train).

    Running statistics of batch norm are not parameters and go on.
    """
    parts = [part for part in model.modules() if isinstance(part, DistributedDataParallel)]
    replicated = {p: part.find_unused_parameters for part in parts for p in part.parameters()}
    for named in iterate_parameters(model):
        freeze = settings_from_rules(rules, named).get("freeze")
        if freeze is None or named.parameter.requires_grad is not freeze:
            continue
        # It waits for gradients that do not come, and sends none of what it took for frozen.
        if named.parameter in replicated and not (freeze and replicated[named.parameter]):
            raise ConfigError(
                f"SOLVER.PARAM_RULES: FREEZE is {str(freeze).lower()} for {named.name}, which is "
                "in DistributedDataParallel already, and that has to know before: leave the "
                "wrapping to PARALLEL, or freeze in build_model before you wrap the model"
            )
        named.parameter.requires_grad_(not freeze)


def warn_about_idle_rules(model: nn.Module, rules: Iterable[ParamRule]) -> None:
    """Log a warning for each rule that matches no parameter, with the nearest names there are."""
    all_named = list(iterate_parameters(model))
    for rule in rules:
        if any(rule.matches(named) for named in all_named):
            continue
        names = {named.name for named in all_named}
        parts = {part for name in names for part in name.split(".")}
        types = set().union(*(named.types for named in all_named))
        nearest = [did_you_mean(rule.match, names | parts), did_you_mean(rule.type, types)]
        hint = " ".join(filter(None, nearest)) or f"the first one is {min(names, default='')!r}"
        logger.warning("%s matches no parameter; %s", rule, hint)


def iterate_parameters(model: nn.Module) -> Iterator[NamedParameter]:
    """Every parameter once, under its first name (without those of wrappers), with the module that
    owns it."""
    seen: set[nn.Parameter] = set()
    plain = plain_names(model)
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter not in seen:
                seen.add(parameter)
                full_name = f"{module_name}.{name}" if module_name else name
                yield NamedParameter(plain(full_name), module, parameter)
