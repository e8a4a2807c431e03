"""Best: the best value of a metric so far."""

import logging
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

from engine.utils.suggest import did_you_mean

logger = logging.getLogger(__name__)

Mode = Literal["max", "min"]


class Best:
    """Remembers the best value of a metric, and the iteration that gave it.

    `metric` is "+name" (higher is better), "-name" (lower is), or "name" with `mode`, "max" unless
    given. The name may be the end of one: "+accuracy" for `classification/accuracy`. A value must
    beat the best by more than `min_delta`. `without` says what a missing metric leads to.
    """

    def __init__(
        self, metric: str, mode: Mode | None = None, min_delta: float = 0.0, *, without: str = ""
    ) -> None:
        modes: dict[str, Mode] = {"+": "max", "-": "min"}
        sign = modes.get(metric[:1])
        if mode not in (None, *get_args(Mode)):
            raise ValueError(f"mode must be 'max' or 'min', got {mode!r}")
        if sign and mode not in (None, sign):
            raise ValueError(
                f"the metric {metric!r} says {sign!r} and mode says {mode!r}; leave mode out"
            )
        if not min_delta >= 0:
            raise ValueError(f"min_delta must be 0 or more, got {min_delta}")
        self.metric = metric[1:] if sign else metric
        if not self.metric:
            raise ValueError(f"expected the name of a metric, such as '+accuracy', got {metric!r}")
        self.mode: Mode = sign or mode or "max"
        self.min_delta = min_delta
        self.value: float | None = None
        self.iteration: int | None = None
        self._without = without
        self._warned_of: set[tuple[str, ...]] = set()  # names of results without the metric

    def name_in(self, results: Mapping[str, float]) -> str | None:
        """What the metric is called in these results; None if no name fits, or more than one."""
        if self.metric in results:
            return self.metric
        names = self._names_that_end_so(results)
        return names[0] if len(names) == 1 else None

    def update(self, results: Mapping[str, float], iteration: int) -> bool:
        """Whether these results have the best value so far; NaN and infinity never are."""
        name = self.name_in(results)
        if name is None:
            self._warn_once(results, iteration)
            return False
        value = float(results[name])
        if not math.isfinite(value) or not self._is_better(value):
            return False
        self.value, self.iteration = value, iteration
        return True

    def _names_that_end_so(self, results: Mapping[str, float]) -> list[str]:
        return [name for name in results if name.endswith(f"/{self.metric}")]

    def _warn_once(self, results: Mapping[str, float], iteration: int) -> None:
        if tuple(results) in self._warned_of:
            return
        self._warned_of.add(tuple(results))
        if names := self._names_that_end_so(results):
            hint = f"which one is meant: {', '.join(names)}?"
        else:
            hint = did_you_mean(self.metric, results) or f"there are: {', '.join(results) or '-'}"
        consequence = f": {self._without}" if self._without else ""
        where = f"at iteration {iteration}{consequence}"
        logger.warning("No metric %r %s; %s", self.metric, where, hint)

    def _is_better(self, value: float) -> bool:
        if self.value is None:
            return True
        gain = value - self.value if self.mode == "max" else self.value - value
        return gain > self.min_delta

    def state_dict(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "mode": self.mode,
            "value": self.value,
            "iteration": self.iteration,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back the best value, unless it is that of another metric or mode."""
        saved = state_dict["metric"], state_dict["mode"]
        if saved != (self.metric, self.mode):
            logger.warning(
                "The saved best value is the %s of %s, not the %s of %s: it is not used",
                *reversed(saved),
                self.mode,
                self.metric,
            )
            return
        self.value, self.iteration = state_dict["value"], state_dict["iteration"]
