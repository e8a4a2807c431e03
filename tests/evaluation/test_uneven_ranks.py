"""Evaluators on two processes that have different numbers of samples."""

from pathlib import Path

import pytest
import torch

from engine.data import LabelledImages, MapDataset, build_test_loader
from engine.evaluation import (
    ClassificationEvaluator,
    GroupedEvaluator,
    LanguageModelEvaluator,
    inference_on_dataset,
)
from engine.parallel.ddp import create_ddp_model

SAMPLES = 7  # four on the first process and three on the second
GROUPS = ["a", "b", "a", "c", "b", "d", "b"]  # "a" is rare on both, "c" and "d" are on one each


def evaluate(samples: int, predictions: str) -> dict:
    """All results on this process; the predictions are the pixels of random images."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(SAMPLES, 1, 1, 5, generator=generator)[:samples]
    labels = torch.randint(0, 3, (SAMPLES,), generator=generator)[:samples]
    dataset = MapDataset(
        [(index, sample) for index, sample in enumerate(LabelledImages(images, labels, 1.0))],
        lambda item: {**item[1], "group": GROUPS[item[0]], "tokens": torch.arange(3) + item[0] % 2},
    )
    grouped = GroupedEvaluator(
        ClassificationEvaluator, lambda batch: batch["group"], min_count=min(2, samples)
    )
    classification = ClassificationEvaluator(
        top_k=[2], per_class=True, save_predictions=predictions
    )
    loader = build_test_loader(dataset, batch_size=3)
    results = inference_on_dataset(lambda batch: batch["image"].flatten(1), loader, classification)
    results |= inference_on_dataset(lambda batch: batch["image"].flatten(1), loader, grouped)
    language_model = LanguageModelEvaluator(bigram_counts=torch.ones(5, 5))
    results |= inference_on_dataset(
        lambda batch: batch["image"].view(-1, 1, 5).expand(-1, 2, 5), loader, language_model
    )
    return results


class Normed(torch.nn.Module):
    """Has buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(5)

    def forward(self, batch: dict) -> torch.Tensor:
        return self.norm(batch["image"].flatten(1))


def evaluate_with_buffers(is_part: bool = False) -> float:
    """With a model that sends its buffers around in forward passes, or has a part that does; one
    rank has no batch."""
    model = create_ddp_model(Normed(), broadcast_buffers=True)
    model = torch.nn.Sequential(model) if is_part else model
    samples = LabelledImages(torch.ones(1, 1, 1, 5), torch.zeros(1, dtype=torch.long), 1.0)
    loader = build_test_loader(samples, batch_size=1)
    results = inference_on_dataset(model, loader, ClassificationEvaluator())
    model({"image": torch.randn(4, 5)}).sum().backward()  # ranks still train together
    return results["classification"]["accuracy"]


def work(rank: int, folder: Path) -> dict:
    seen = {
        "uneven": evaluate(SAMPLES, f"{folder}/uneven.pth"),
        "one sample": evaluate(1, f"{folder}/one.pth"),
        "with buffers": evaluate_with_buffers(),
        "with a part that has buffers": evaluate_with_buffers(is_part=True),
        "nothing": "",
    }
    try:
        inference_on_dataset(print, [], ClassificationEvaluator())
    except ValueError as error:
        seen["nothing"] = str(error)
    return seen


@pytest.mark.parametrize(("case", "samples"), [("uneven", SAMPLES), ("one sample", 1)])
def test_results_are_those_of_a_single_process_on_every_rank(processes, tmp_path, case, samples):
    alone = evaluate(samples, str(tmp_path / "predictions.pth"))
    assert processes[0][case] == processes[1][case]
    assert processes[0][case].keys() == alone.keys()
    for name, result in alone.items():
        for task, value in result.items():
            assert processes[0][case][name][task] == pytest.approx(value)


@pytest.mark.parametrize("case", ["with buffers", "with a part that has buffers"])
def test_a_rank_without_a_batch_is_not_waited_for_to_send_buffers(processes, case):
    assert [process[case] for process in processes] == [100.0, 100.0]


def test_groups_are_rare_by_their_samples_on_all_ranks(processes):
    assert processes[0]["uneven"].keys() >= {"a", "b", "other"}
    assert processes[0]["uneven"].keys().isdisjoint({"c", "d"})


def test_the_predictions_of_all_ranks_are_stored_in_the_order_of_the_data(
    processes, folder, tmp_path
):
    evaluate(SAMPLES, str(tmp_path / "alone.pth"))
    alone = torch.load(tmp_path / "alone.pth", weights_only=True)
    together = torch.load(folder / "uneven.pth", weights_only=True)
    assert together.keys() == alone.keys()
    for name, value in alone.items():
        assert torch.allclose(together[name], value)


def test_no_sample_on_any_rank_is_an_error_on_every_rank(processes):
    assert ["no batch was evaluated" in process["nothing"] for process in processes] == [True, True]
