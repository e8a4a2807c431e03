"""GroupedEvaluator: results apart for named groups of samples."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from engine.evaluation.batch import count_samples, select_samples
from engine.evaluation.evaluator import DatasetEvaluator
from engine.parallel.comm import all_gather

logger = logging.getLogger(__name__)


class GroupedEvaluator(DatasetEvaluator):
    """An evaluator for each group of samples: {group: results of its evaluator}.

    `group_of(inputs)` names the group of a batch, or gives a list of names, one for each sample::

        GroupedEvaluator(ClassificationEvaluator, lambda inputs: inputs["device"], min_count=50)

    Groups with fewer than `min_count` samples over all ranks go into the group `rest` together;
    until a group is known not to be one of these, its batches are kept in memory.
    """

    def __init__(
        self,
        evaluator_factory: Callable[[], DatasetEvaluator],
        group_of: Callable[[Any], str | Sequence[str]],
        *,
        min_count: int = 1,
        rest: str = "other",
    ) -> None:
        self.evaluator_factory = evaluator_factory
        self.group_of = group_of
        self.min_count = min_count
        self.rest = rest
        self.reset()

    def reset(self) -> None:
        self._evaluators: dict[str, DatasetEvaluator] = {}
        self._counts: Counter[str] = Counter()
        self._kept: dict[str, list[tuple[Any, Any]]] = {}

    def process(self, inputs: Any, outputs: Any) -> None:
        names = self.group_of(inputs)
        size = count_samples(inputs)
        if isinstance(names, str):
            self._add(names, size, inputs, outputs)
            return
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"group_of must give a name or a list of names, got {names!r:.80}")
        if len(names) != size:
            raise ValueError(f"group_of gave {len(names)} names for a batch of {size} samples")
        for group in dict.fromkeys(names):
            indices = [index for index, name in enumerate(names) if name == group]
            parts = [select_samples(batch, indices, size) for batch in (inputs, outputs)]
            self._add(group, len(indices), *parts)

    def evaluate(self) -> dict[str, Any]:
        counts: Counter[str] = sum(all_gather(self._counts), Counter())
        rare = {group: count for group, count in counts.items() if count < self.min_count}
        if rare:
            logger.info(
                "Groups of fewer than %d samples, taken together as %r: %s",
                self.min_count,
                self.rest,
                ", ".join(f"{group} ({count})" for group, count in sorted(rare.items())),
            )
        for group in self._kept:
            self._feed(group, self.rest if group in rare else group)
        # All ranks evaluate the same groups in the same order, also those they saw nothing of.
        groups = {self.rest if group in rare else group for group in counts}
        in_order = sorted(groups, key=lambda group: (group == self.rest, group))
        return {group: self._evaluator(group).evaluate() or {} for group in in_order}

    def _add(self, group: str, count: int, inputs: Any, outputs: Any) -> None:
        self._counts[group] += count
        self._kept.setdefault(group, []).append((inputs, outputs))
        if self._counts[group] >= self.min_count:
            self._feed(group, group)

    def _feed(self, group: str, into: str) -> None:
        evaluator = self._evaluator(into)
        for inputs, outputs in self._kept[group]:
            evaluator.process(inputs, outputs)
        self._kept[group].clear()

    def _evaluator(self, group: str) -> DatasetEvaluator:
        if group not in self._evaluators:
            self._evaluators[group] = self.evaluator_factory()
            self._evaluators[group].reset()
        return self._evaluators[group]
