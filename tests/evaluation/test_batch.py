import pytest
import torch

from engine.evaluation.batch import count_samples, get_entry, get_logits, select_samples


def test_an_entry_of_a_batch():
    labels = torch.tensor([1, 2])
    assert get_entry({"label": labels}, "label", dimensions=1) is labels


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ((1, 2), TypeError, "a dict with 'label', got tuple"),
        ({"image": 1, "lable": 2}, KeyError, "no 'label', only 'image', 'lable'"),
        ({"label": [1, 2]}, ValueError, "'label' as a tensor of 1 dimensions, got list"),
        ({"label": torch.zeros(2, 3)}, ValueError, r"1 dimensions, got \(2, 3\)"),
    ],
)
def test_a_batch_without_the_entry_is_an_error_that_says_what_came(inputs, error, message):
    with pytest.raises(error, match=message):
        get_entry(inputs, "label", dimensions=1)


def test_logits_are_the_output_or_an_entry_of_it():
    logits = torch.zeros(2, 10)
    assert get_logits(logits, (2,)) is logits
    assert get_logits({"logits": logits, "features": None}, (2,)) is logits


@pytest.mark.parametrize(
    ("outputs", "error", "message"),
    [
        ({"scores": 1}, KeyError, "no 'logits', only 'scores'"),
        ([torch.zeros(2, 10)], TypeError, "from the model, got list"),
        (torch.zeros(3, 10), ValueError, "shape 2 × classes, got 3 × 10"),
        (torch.zeros(2), ValueError, "shape 2 × classes, got 2"),
    ],
)
def test_other_outputs_are_an_error_that_says_what_came(outputs, error, message):
    with pytest.raises(error, match=message):
        get_logits(outputs, (2,))


def test_the_samples_of_a_batch_are_counted():
    assert count_samples({"step": 7, "loss": torch.tensor(1.0), "label": torch.zeros(3)}) == 3
    assert count_samples({"name": ["a", "b"]}) == 2
    assert count_samples([{"label": 1}, {"label": 2}]) == 2


@pytest.mark.parametrize("batch", [(torch.zeros(4, 2), torch.zeros(4)), {"step": 7}, "ab"])
def test_a_batch_of_unknown_layout_is_refused(batch):
    with pytest.raises(TypeError, match="a dict of tensors or a list of samples"):
        count_samples(batch)


def test_samples_are_selected_from_all_that_belongs_to_samples():
    batch = {
        "image": torch.arange(6).view(3, 2),
        "name": ("a", "b", "c"),
        "sizes": {"height": torch.tensor([1, 2, 3])},
        "loss": torch.tensor(0.5),
        "classes": ["cat", "dog"],
        "split": "xyz",
    }
    part = select_samples(batch, [2, 0], size=3)
    assert part["image"].tolist() == [[4, 5], [0, 1]]
    assert part["name"] == ["c", "a"]
    assert part["sizes"]["height"].tolist() == [3, 1]
    assert part["loss"].item() == 0.5
    assert part["classes"] == ["cat", "dog"]
    assert part["split"] == "xyz"


def test_samples_are_selected_from_a_list():
    assert select_samples([{"a": 1}, {"a": 2}], [1], size=2) == [{"a": 2}]
