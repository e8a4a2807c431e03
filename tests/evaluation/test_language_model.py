import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine.data import CharacterDataset, build_test_loader
from engine.data.text import VOCABULARY, encode
from engine.evaluation import LanguageModelEvaluator, count_bigrams, inference_on_dataset

TEXT = "to be or not to be, that is the question: whether it is nobler to be or not"
SIZE = len(VOCABULARY)


def evaluate(model, batch_size=3, **options):
    loader = build_test_loader(CharacterDataset(TEXT, 8), batch_size=batch_size)
    results = inference_on_dataset(model, loader, LanguageModelEvaluator(**options))
    return results["language_model"]


def predicted_tokens():
    """All tokens that the sequences of eight predict, and those before them."""
    tokens = encode(TEXT)[: 8 * ((len(TEXT) - 1) // 8) + 1]
    return tokens[:-1], tokens[1:]


def uniform(batch):
    return torch.zeros(*batch["tokens"][:, 1:].shape, SIZE)


def test_a_uniform_model_is_as_perplexed_as_there_are_tokens():
    metrics = evaluate(uniform)
    assert metrics["loss"] == pytest.approx(math.log(SIZE))
    assert metrics["perplexity"] == pytest.approx(SIZE)
    assert metrics["bits_per_token"] == pytest.approx(math.log2(SIZE))
    assert list(metrics) == ["loss", "perplexity", "bits_per_token"]


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_the_loss_is_that_of_each_token_given_those_before_it(batch_size):
    model = nn.Embedding(SIZE, SIZE)
    metrics = evaluate(lambda batch: {"logits": model(batch["tokens"][:, :-1])}, batch_size)
    previous, targets = predicted_tokens()
    assert metrics["loss"] == pytest.approx(F.cross_entropy(model(previous), targets).item())


def test_bigrams_are_counted():
    assert count_bigrams(torch.tensor([0, 1, 0, 1, 1]), 2).tolist() == [[0, 2], [1, 1]]


def test_a_bigram_model_is_measured_on_the_same_tokens():
    counts = count_bigrams(encode("to be or not to be"), SIZE)
    previous, targets = predicted_tokens()
    smoothed = counts.double() + 1
    bigram_model = (smoothed / smoothed.sum(1, keepdim=True)).log().float()
    expected = F.nll_loss(bigram_model[previous], targets).item()

    metrics = evaluate(uniform, bigram_counts=counts)
    assert metrics["bigram_loss"] == pytest.approx(expected)
    assert metrics["bigram_loss"] < metrics["loss"]

    as_a_model = evaluate(lambda batch: bigram_model[batch["tokens"][:, :-1]], bigram_counts=counts)
    assert as_a_model["loss"] == pytest.approx(as_a_model["bigram_loss"])


def test_a_hopeless_model_has_an_infinite_perplexity():
    evaluator = LanguageModelEvaluator()
    evaluator.process({"tokens": torch.tensor([[0, 1]])}, torch.tensor([[[9000.0, 0.0]]]))
    metrics = evaluator.evaluate()["language_model"]
    assert metrics["loss"] == 9000
    assert metrics["perplexity"] == math.inf


def test_logits_for_all_tokens_are_refused():
    with pytest.raises(ValueError, match="3 × 8 × classes, got 3 × 9 × 97"):
        evaluate(lambda batch: torch.zeros(*batch["tokens"].shape, SIZE))


def test_bigram_counts_must_be_square():
    with pytest.raises(ValueError, match=r"vocabulary × vocabulary, got \(3, 2\)"):
        LanguageModelEvaluator(bigram_counts=torch.zeros(3, 2))
