import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.evaluation import (
    ClassificationEvaluator,
    DatasetEvaluators,
    GroupedEvaluator,
    inference_on_dataset,
    results_table,
)

RIGHT, WRONG = [9.0, 0.0], [0.0, 9.0]
DEVICES = ["old", "new", "new", "old", "lent", "new", "spare"]
LOGITS = [RIGHT, RIGHT, WRONG, RIGHT, RIGHT, RIGHT, WRONG]  # the label is always 0


def batches(sizes=(4, 3), devices=DEVICES, logits=LOGITS):
    rows = iter(zip(devices, logits, strict=True))
    for size in sizes:
        names, some_logits = zip(*(next(rows) for _ in range(size)), strict=True)
        yield {
            "device": list(names),
            "image": torch.tensor(some_logits),
            "label": torch.zeros(size, dtype=torch.long),
        }


def classify(batch):
    return {"logits": batch["image"]}


def device(batch):
    return batch["device"]


def accuracies(results):
    return {group: result["classification"]["accuracy"] for group, result in results.items()}


def test_each_group_has_its_own_results():
    results = inference_on_dataset(
        classify, batches(), GroupedEvaluator(ClassificationEvaluator, device)
    )
    assert accuracies(results) == {
        "lent": 100.0,
        "new": pytest.approx(200 / 3),
        "old": 100.0,
        "spare": 0.0,
    }


def test_rare_groups_are_taken_together(log):
    evaluator = GroupedEvaluator(ClassificationEvaluator, device, min_count=2)
    results = inference_on_dataset(classify, batches(), evaluator)
    assert accuracies(results) == {"new": pytest.approx(200 / 3), "old": 100.0, "other": 50.0}
    assert list(results)[-1] == "other"
    assert "fewer than 2 samples, taken together as 'other': lent (1), spare (1)" in log.text


def test_a_group_that_has_the_name_of_the_rest_joins_it():
    evaluator = GroupedEvaluator(ClassificationEvaluator, device, min_count=2, rest="old")
    results = inference_on_dataset(classify, batches(), evaluator)
    assert accuracies(results) == {"new": pytest.approx(200 / 3), "old": 75.0}


def test_a_whole_batch_may_belong_to_one_group():
    first, second = batches((4, 3))
    evaluator = GroupedEvaluator(
        ClassificationEvaluator, lambda batch: "a" if batch is first else "b", min_count=4
    )
    results = inference_on_dataset(classify, [first, second], evaluator)
    assert accuracies(results) == {"a": 75.0, "other": pytest.approx(200 / 3)}


def test_all_and_the_groups_stand_in_one_table():
    evaluators = [ClassificationEvaluator(), GroupedEvaluator(ClassificationEvaluator, device)]
    table = results_table(inference_on_dataset(classify, batches(), evaluators))
    cells = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines()]
    assert cells[0] == ["classification", "accuracy"]
    assert cells[2:] == [
        ["all", "71.4286"],
        ["lent", "100.0000"],
        ["new", "66.6667"],
        ["old", "100.0000"],
        ["spare", "0.0000"],
    ]


def test_an_evaluation_can_be_repeated():
    evaluator = DatasetEvaluators([GroupedEvaluator(ClassificationEvaluator, device, min_count=2)])
    first = inference_on_dataset(classify, batches(), evaluator)
    assert inference_on_dataset(classify, batches(), evaluator) == first


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(0, 6))
def test_the_order_of_samples_does_not_matter(data, min_count):
    order = data.draw(st.permutations(range(7)))
    devices, logits = [DEVICES[i] for i in order], [LOGITS[i] for i in order]
    shuffled = batches((2, 2, 3), devices, logits)
    results = [
        inference_on_dataset(
            classify, loader, GroupedEvaluator(ClassificationEvaluator, device, min_count=min_count)
        )
        for loader in (batches(), shuffled)
    ]
    assert accuracies(results[0]) == pytest.approx(accuracies(results[1]))


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (["a", "b"], ValueError, "2 names for a batch of 4 samples"),
        (torch.zeros(4), TypeError, "a name or a list of names, got tensor"),
        ([1, 2, 3, 4], TypeError, r"a name or a list of names, got \[1, 2, 3, 4\]"),
    ],
)
def test_groups_that_do_not_fit_the_batch_are_refused(names, error, message):
    evaluator = GroupedEvaluator(ClassificationEvaluator, lambda _: names)
    with pytest.raises(error, match=message):
        inference_on_dataset(classify, batches(), evaluator)
