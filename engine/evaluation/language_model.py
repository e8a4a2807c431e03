"""LanguageModelEvaluator: how well a model predicts the next token."""

import math
from typing import Any

import torch
from torch.nn import functional as F

from engine.evaluation.batch import get_entry, get_logits
from engine.evaluation.evaluator import DatasetEvaluator
from engine.evaluation.totals import Totals


class LanguageModelEvaluator(DatasetEvaluator):
    """Loss (nats), bits and perplexity a token, of logits B × T × vocabulary.

    The T inputs and T targets of a sequence are inputs["tokens"], B × (T + 1), without the last
    and without the first. `bigram_counts` (see `count_bigrams`) adds as "bigram_loss" the loss of
    a bigram model, smoothed by adding one to each count, on the same targets.
    """

    def __init__(self, *, bigram_counts: torch.Tensor | None = None) -> None:
        self._bigram_losses = None if bigram_counts is None else _losses_of(bigram_counts)
        self.reset()

    def reset(self) -> None:
        self._totals = Totals()

    def process(self, inputs: Any, outputs: Any) -> None:
        tokens = get_entry(inputs, "tokens", dimensions=2)
        previous, targets = tokens[:, :-1], tokens[:, 1:]
        logits = get_logits(outputs, targets.shape).flatten(0, 1).float()
        loss = F.cross_entropy(logits, targets.flatten().to(logits.device), reduction="sum")
        self._totals.add(tokens=targets.numel(), loss=loss)
        if self._bigram_losses is not None:
            self._bigram_losses = self._bigram_losses.to(tokens.device)
            self._totals.add(bigram_loss=self._bigram_losses[previous, targets].sum())

    def evaluate(self) -> dict[str, Any]:
        sums = {name: value.item() for name, value in self._totals.gather().items()}
        loss = sums["loss"] / sums["tokens"]
        metrics = {
            "loss": loss,
            "perplexity": math.exp(loss) if loss < 700 else math.inf,  # exp(710) is an error
            "bits_per_token": loss / math.log(2),
        }
        if self._bigram_losses is not None:
            metrics["bigram_loss"] = sums["bigram_loss"] / sums["tokens"]
        return {"language_model": metrics}


def count_bigrams(tokens: torch.Tensor, vocabulary_size: int) -> torch.Tensor:
    """How often each token (column) follows each other one (row) in a text."""
    pairs = tokens[:-1] * vocabulary_size + tokens[1:]
    return pairs.bincount(minlength=vocabulary_size**2).view(vocabulary_size, vocabulary_size)


def _losses_of(counts: torch.Tensor) -> torch.Tensor:
    """The loss of each token (column) after each other one (row)."""
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1]:
        raise ValueError(
            f"expected bigram counts of shape vocabulary × vocabulary, got {tuple(counts.shape)}"
        )
    smoothed = counts.double() + 1
    return (smoothed.sum(1, keepdim=True).log() - smoothed.log()).float()
