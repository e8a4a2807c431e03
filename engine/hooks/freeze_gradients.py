"""FreezeGradients: parameters that join the training later."""

import re

from torch import nn

from engine.config import ConfigError
from engine.hooks.base import HookBase, Priority
from engine.utils.lengths import check_length, to_iterations
from engine.utils.suggest import did_you_mean
from engine.utils.wrapping import plain_names


class FreezeGradients(HookBase):
    r"""Leaves parameters as they are, weight decay included, in the first iterations of training.

    `pattern` is a regular expression searched for in their full names (`^backbone\.`);
    `iterations` is 500 or "1 epoch".
    """

    priority = Priority.HIGH  # before hooks that read the gradients

    def __init__(self, pattern: str, iterations: int | str) -> None:
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        check_length(iterations)
        self._iterations = iterations

    def before_train(self) -> None:
        self._end = to_iterations(self._iterations, self.trainer.epoch_length)
        self._frozen = self._find_parameters()

    def after_backward(self) -> None:
        if self.trainer.iter < self._end:
            for parameter in self._frozen:
                parameter.grad = None  # an optimizer passes over it; a zero would still decay

    def _find_parameters(self) -> list[nn.Parameter]:
        model = self.trainer.model  # type: ignore[attr-defined]
        plain = plain_names(model)
        named = {plain(name): parameter for name, parameter in model.named_parameters()}
        found = [parameter for name, parameter in named.items() if self._pattern.search(name)]
        if not found:
            pattern = self._pattern.pattern
            parts = {part for name in named for part in name.split(".")}
            roots = dict.fromkeys(name.partition(".")[0] for name in named)
            hint = did_you_mean(pattern, parts.union(named)) or f"there are: {', '.join(roots)}"
            raise ConfigError(f"FreezeGradients: {pattern!r} matches no parameter; {hint}")
        return found
