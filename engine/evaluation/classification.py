"""ClassificationEvaluator: accuracy and loss of a classifier."""

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from engine.evaluation.batch import get_entry, get_logits
from engine.evaluation.evaluator import DatasetEvaluator
from engine.evaluation.results import write_or_warn
from engine.evaluation.totals import Totals
from engine.parallel.comm import gather

NUMBERS_AT_ONCE = 2**18  # logits that are kept and measured together: cheaper than each batch alone


class ClassificationEvaluator(DatasetEvaluator):
    """Accuracy in percent and mean cross-entropy of logits, B × classes, for inputs["label"].

    `top_k=(5,)` adds "top5_accuracy". `per_class` adds "accuracy-<class>" for each class that has
    samples. `save_predictions` names a file for `torch.load`, a dict of the "label", "predicted"
    class and "scores" (the probabilities of all classes) of all samples.
    """

    def __init__(
        self,
        *,
        top_k: Sequence[int] = (),
        per_class: bool = False,
        class_names: Sequence[str] | None = None,
        save_predictions: str | os.PathLike[str] | None = None,
    ) -> None:
        if any(k < 1 for k in top_k):
            raise ValueError(f"top_k takes numbers from 1 on, got {list(top_k)}")
        self.top_k = tuple(top_k)
        self._choices = max(self.top_k, default=1)
        self.per_class = per_class
        self.class_names = class_names
        self.save_predictions = save_predictions
        self.reset()

    def reset(self) -> None:
        self._waiting: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._waiting_numbers = 0
        self._totals = Totals()
        self._predictions: list[dict[str, torch.Tensor]] = []

    def process(self, inputs: Any, outputs: Any) -> None:
        labels = get_entry(inputs, "label", dimensions=1)
        logits = get_logits(outputs, labels.shape)
        self._check_classes(logits.shape[-1])
        # Copies, as a compiled model may write its next output to the same place.
        labels = labels.to(logits.device, copy=True)
        self._waiting.append((logits.to(torch.float32, copy=True), labels))
        self._waiting_numbers += logits.numel()
        if self._waiting_numbers >= NUMBERS_AT_ONCE:
            self._measure()

    def evaluate(self) -> dict[str, Any]:
        if self._waiting:
            self._measure()
        sums = self._totals.gather()
        samples = sums["samples"].item()
        # hits[i] counts the samples whose label was the model's choice number i.
        accuracy = (100 * sums["hits"].cumsum(0).double() / samples).tolist()
        metrics = {"accuracy": accuracy[0]}
        metrics |= {f"top{k}_accuracy": accuracy[k - 1] for k in self.top_k}
        metrics["loss"] = sums["loss"].item() / samples
        if self.per_class:
            per_class = (100 * sums["class_hits"].double() / sums["class_samples"]).tolist()
            names = self.class_names or range(len(per_class))
            metrics |= {
                f"accuracy-{name}": value
                for name, value, count in zip(names, per_class, sums["class_samples"], strict=True)
                if count
            }
        if self.save_predictions:
            _save(self._predictions, self.save_predictions)
        return {"classification": metrics}

    def _measure(self) -> None:
        logits, labels = map(torch.cat, zip(*self._waiting, strict=True))
        self._waiting.clear()
        self._waiting_numbers = 0
        best = logits.topk(self._choices).indices if self.top_k else logits.argmax(1, keepdim=True)
        hits = best == labels[:, None]
        self._totals.add(samples=len(labels), loss=_cross_entropy(logits, labels), hits=hits.sum(0))
        if self.per_class:
            none = torch.zeros_like(logits[0], dtype=torch.long)
            self._totals.add(
                class_samples=none.index_add(0, labels, torch.ones_like(labels)),
                class_hits=none.index_add(0, labels, hits[:, 0].long()),
            )
        if self.save_predictions:
            raw = {"label": labels, "predicted": best[:, 0], "scores": logits.softmax(1)}
            self._predictions.append({name: value.cpu() for name, value in raw.items()})

    def _check_classes(self, classes: int) -> None:
        if self._choices > classes:
            raise ValueError(
                f"top-{self._choices} accuracy was asked of a model with {classes} classes"
            )
        if self.class_names is not None and len(self.class_names) != classes:
            raise ValueError(
                f"{len(self.class_names)} class names for a model with {classes} classes"
            )


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The sum over samples; on the CPU a few times as fast as torch's for few classes."""
    logits = logits - logits.amax(1, keepdim=True)
    return (logits.logsumexp(1) - logits.gather(1, labels[:, None]).squeeze(1)).sum()


def _save(predictions: list[dict[str, torch.Tensor]], path: str | os.PathLike[str]) -> None:
    """Write the predictions of all ranks, in order of rank, to one file."""
    batches = [batch for rank in gather(predictions) for batch in rank]
    if batches:  # rank 0 has them all
        columns = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
        write_or_warn(os.fspath(path), partial(torch.save, columns))
