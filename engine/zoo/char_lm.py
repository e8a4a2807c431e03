"""A character-level language model, and a trainer that measures it against a bigram model."""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional as F

from engine.config import CfgNode
from engine.data import DatasetCatalog
from engine.data.text import VOCABULARY
from engine.defaults import DefaultTrainer
from engine.evaluation import LanguageModelEvaluator, count_bigrams
from engine.events import get_event_storage
from engine.modeling import META_ARCH_REGISTRY


@META_ARCH_REGISTRY.register()
class CharacterGRU(nn.Module):
    """Predicts each of {"tokens": N × (T + 1)} but the first from those before it, by a GRU.

    In training it returns the cross entropy in nats as "loss_lm" and logs the accuracy of the
    batch in percent; otherwise it returns the "logits", N × T × vocabulary.
    """

    def __init__(self, embedding: int = 64, hidden: int = 192, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(VOCABULARY), embedding)
        self.gru = nn.GRU(embedding, hidden, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, len(VOCABULARY))

    def forward(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tokens = batch["tokens"].to(self.head.weight.device, non_blocking=True)
        states, _ = self.gru(self.embedding(tokens[:, :-1]))
        logits = self.head(self.dropout(states))
        if not self.training:
            return {"logits": logits}
        logits, targets = logits.flatten(0, 1), tokens[:, 1:].flatten()
        correct = logits.detach().argmax(dim=1) == targets
        get_event_storage().put_scalar("train/accuracy", 100 * correct.float().mean())
        return {"loss_lm": F.cross_entropy(logits, targets)}


class Trainer(DefaultTrainer):
    """DefaultTrainer whose results also hold the loss of a bigram model of the training text."""

    @classmethod
    def build_evaluator(cls, cfg: CfgNode, dataset_name: str) -> LanguageModelEvaluator:
        texts = (DatasetCatalog.get(name).tokens for name in cfg.DATASETS.TRAIN)
        counts = torch.stack([count_bigrams(text, len(VOCABULARY)) for text in texts]).sum(dim=0)
        return LanguageModelEvaluator(bigram_counts=counts)
