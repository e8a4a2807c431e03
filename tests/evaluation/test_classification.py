import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from engine.evaluation import ClassificationEvaluator, classification, inference_on_dataset
from engine.events import EventStorage

LOGITS = torch.tensor([[9.0, 1, 0, 0], [0, 1, 9, 0], [9, 8, 0, 0], [0, 0, 1, 9], [9, 2, 1, 0]])
LABELS = torch.tensor([0, 2, 1, 3, 2])  # right, right, second choice, right, third choice


def evaluate(logits=LOGITS, labels=LABELS, sizes=(2, 3), **options):
    """The metrics when the samples come in batches of these sizes."""
    batches = [
        {"logits": some_logits, "label": some_labels}
        for some_logits, some_labels in zip(logits.split(sizes), labels.split(sizes), strict=True)
    ]
    evaluator = ClassificationEvaluator(**options)
    results = inference_on_dataset(lambda batch: batch["logits"], batches, evaluator)
    assert list(results) == ["classification"]
    return results["classification"]


def test_accuracy_is_in_percent_and_the_loss_is_a_mean():
    metrics = evaluate()
    assert metrics["accuracy"] == 60.0
    assert metrics["loss"] == pytest.approx(F.cross_entropy(LOGITS, LABELS).item())
    assert list(metrics) == ["accuracy", "loss"]


def test_accuracies_have_all_their_digits():
    metrics = evaluate(LOGITS[:3], torch.zeros(3, dtype=torch.long), (3,), per_class=True)
    assert (metrics["accuracy"], metrics["accuracy-0"]) == (200 / 3, 200 / 3)


def test_top_k_counts_labels_among_the_first_k_choices():
    metrics = evaluate(top_k=(2, 3))
    assert (metrics["accuracy"], metrics["top2_accuracy"], metrics["top3_accuracy"]) == (
        60,
        80,
        100,
    )


def test_each_class_has_its_accuracy_if_it_has_samples():
    metrics = evaluate(LOGITS[:3], LABELS[:3], (3,), per_class=True)
    assert {name: metrics[name] for name in metrics if "-" in name} == {
        "accuracy-0": 100.0,
        "accuracy-1": 0.0,
        "accuracy-2": 100.0,
    }


def test_classes_are_called_by_their_names():
    metrics = evaluate(per_class=True, class_names=["cat", "dog", "owl", "eel"])
    assert metrics["accuracy-owl"] == 50.0
    assert metrics["accuracy-eel"] == 100.0


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=20),
    at_once=st.integers(1, 200),
    seed=st.integers(0, 9),
)
def test_the_split_into_batches_does_not_matter(sizes, at_once, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(sum(sizes), 5, generator=generator) * 10
    labels = torch.randint(0, 5, (sum(sizes),), generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classification, "NUMBERS_AT_ONCE", at_once)
        metrics = evaluate(logits, labels, sizes, top_k=(3,), per_class=True)
    whole = evaluate(logits, labels, (sum(sizes),), top_k=(3,), per_class=True)
    assert metrics == pytest.approx(whole)
    assert metrics["loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), abs=1e-5)


def test_the_loss_of_confident_models_is_exact():
    logits, labels = torch.tensor([[1000.0, 998.0], [-1000.0, 1000.0]]), torch.tensor([0, 0])
    assert evaluate(logits, labels, (2,))["loss"] == pytest.approx(1000.0634640)


def test_a_model_may_write_all_its_outputs_to_one_place():
    memory = torch.empty(1, 4)
    batches = [{"label": LABELS[i : i + 1], "logits": LOGITS[i : i + 1]} for i in range(5)]

    def model(batch):
        return memory.copy_(batch["logits"])

    results = inference_on_dataset(model, batches, ClassificationEvaluator())
    assert results["classification"]["accuracy"] == 60.0


def test_half_precision_logits_and_dicts_are_taken():
    evaluator = ClassificationEvaluator(top_k=[2])
    evaluator.process({"label": LABELS}, {"logits": LOGITS.bfloat16()})
    metrics = evaluator.evaluate()["classification"]
    assert metrics["top2_accuracy"] == 80.0
    assert metrics["loss"] == pytest.approx(F.cross_entropy(LOGITS, LABELS).item())


def test_a_model_that_diverged_shows_it_in_the_loss():
    metrics = evaluate(torch.full_like(LOGITS, float("nan")))
    assert metrics["loss"] != metrics["loss"]


def test_raw_predictions_are_stored_whole_on_request(tmp_path):
    path = tmp_path / "new" / "predictions.pth"
    evaluate(save_predictions=path)
    stored = torch.load(path, weights_only=True)
    assert stored["label"].tolist() == LABELS.tolist()
    assert stored["predicted"].tolist() == [0, 2, 0, 3, 0]
    assert torch.allclose(stored["scores"], LOGITS.softmax(1))
    assert os.listdir(path.parent) == ["predictions.pth"]


def test_predictions_that_cannot_be_stored_do_not_end_a_run(tmp_path, log):
    (tmp_path / "file").touch()
    with EventStorage():
        assert evaluate(save_predictions=tmp_path / "file" / "predictions.pth")["accuracy"] == 60.0
    assert "predictions.pth cannot be written: File exists" in log.text
    with pytest.raises(OSError, match="File exists"):
        evaluate(save_predictions=tmp_path / "file" / "predictions.pth")


def test_a_label_outside_the_classes_is_an_error():
    with pytest.raises(RuntimeError, match="out of bounds"):
        evaluate(labels=torch.tensor([0, 1, 2, 3, 4]))


def test_more_choices_than_classes_are_refused():
    with pytest.raises(ValueError, match="top-5 accuracy was asked of a model with 4 classes"):
        evaluate(top_k=(5,))
    with pytest.raises(ValueError, match="from 1 on"):
        ClassificationEvaluator(top_k=(0,))


def test_a_wrong_number_of_class_names_is_refused():
    with pytest.raises(ValueError, match="2 class names for a model with 4 classes"):
        evaluate(class_names=["cat", "dog"])
