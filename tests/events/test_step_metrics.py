import numpy as np
import pytest
import torch

from engine.events import EventStorage
from engine.events.step_metrics import losses_among, mean_of, put_step_metrics, total_loss


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.tensor(2.0, requires_grad=True)


def stored(metrics, iteration=3, prefix="") -> dict:
    """What is in the storage after a step with these metrics."""
    with EventStorage(100) as storage:
        put_step_metrics(metrics, 0.125, iteration, prefix)
    assert {at for _, at in storage.latest().values()} == {iteration}
    return {name: value for name, (value, _) in storage.latest().items()}


def test_what_requires_grad_is_minimised_and_nothing_else(weight):
    metrics = {"loss": weight * 2, "acc": 0.5, "norm": torch.tensor(9.0), "reg": weight * 3}
    loss = total_loss(metrics)
    loss.backward()
    assert loss.item() == stored(metrics)["total_loss"] == 10.0
    assert weight.grad.item() == 5.0


def test_where_nothing_requires_grad_all_are_losses():
    metrics = {"loss": torch.tensor(1.0), "reg": torch.tensor(2.0)}
    assert total_loss(metrics).item() == stored(metrics)["total_loss"] == 3.0


@pytest.mark.parametrize("all_detached", [True, False])
def test_the_losses_are_what_is_summed(weight, all_detached):
    loss = weight.detach() if all_detached else weight
    metrics = {"loss": loss, "acc": torch.tensor(0.5)}
    with EventStorage():
        total, numbers = put_step_metrics(metrics, 0.125, 3)
    losses = losses_among(metrics, numbers)
    assert losses == ({"loss": 2.0, "acc": 0.5} if all_detached else {"loss": 2.0})
    assert sum(losses.values()) == total == total_loss(metrics).item()


@pytest.mark.parametrize("path", ["cpu", "accelerator"])
@pytest.mark.parametrize("iteration", [100, 3])  # the current one, or not
@pytest.mark.parametrize("count", [2, 30])
def test_of_any_number_of_metrics_each_is_stored(weight, count, iteration, path, request):
    if path == "accelerator":
        request.getfixturevalue("on_accelerator")
    tensors = {f"tensor{number}": torch.tensor(float(number)) for number in range(count)}
    floats = {f"float{number}": number / 4 for number in range(count)}
    found = stored({"loss": weight * 2, **tensors, **floats}, iteration)
    expected = {"loss": 4.0, "total_loss": 4.0, **floats}
    expected |= {name: value.item() for name, value in tensors.items()}
    assert {name: found[name] for name in expected} == expected
    assert len(found) == len(expected) + 2  # and times


def test_metrics_are_averaged_over_the_batches_that_have_them(weight):
    parts = [{"loss": weight * 1, "acc": 1.0}, {"loss": weight * 3}, {"loss": weight * 5}]
    mean = mean_of(parts)
    assert mean["loss"].item() == 6.0
    assert mean["acc"] == 1.0


def test_a_step_stores_each_metric_the_sum_of_the_losses_and_the_data_time(weight):
    metrics = {"loss_cls": weight * 2, "loss_box": weight * 3, "acc": np.float32(0.5)}
    assert stored(metrics) == {
        "data_time": 0.125,
        "rank_data_time": 0.125,
        "total_loss": 10.0,
        "loss_cls": 4.0,
        "loss_box": 6.0,
        "acc": 0.5,
    }


def test_a_single_loss_is_stored_under_its_own_name_too(weight):
    assert stored({"loss": weight}).items() >= {"loss": 2.0, "total_loss": 2.0}.items()
    assert set(stored({"total_loss": weight})) == {"data_time", "rank_data_time", "total_loss"}


def test_a_loss_called_total_loss_makes_way_for_the_sum(weight):
    with EventStorage() as storage:
        total, _ = put_step_metrics({"total_loss": weight, "reg": weight * 2}, 0.125, 3)
    assert total == 6.0
    assert storage.history("total_loss").values() == [(6.0, 3)]
    assert storage.history("reg").values() == [(4.0, 3)]


def test_what_is_not_stored_is_summed_all_the_same(weight):
    with EventStorage() as storage:
        total, _ = put_step_metrics({"a": weight, "acc": 0.5}, 0.125, 3, is_stored=False)
    assert total == 2.0
    assert storage.latest() == {}


def test_a_prefix_goes_before_the_name_of_the_sum(weight):
    names = set(stored({"loss": weight}, prefix="teacher_"))
    assert names == {"data_time", "rank_data_time", "teacher_total_loss", "loss"}


@pytest.mark.parametrize("bad", [None, "0.5", torch.ones(2)])
@pytest.mark.parametrize("path", ["cpu", "accelerator"])
def test_a_metric_that_is_no_number_is_refused_by_name(weight, bad, path, request):
    if path == "accelerator":
        request.getfixturevalue("on_accelerator")
    with pytest.raises((TypeError, ValueError), match="metric 'acc' must be"):
        stored({"loss": weight, "acc": bad})


@pytest.mark.usefixtures("on_accelerator")
def test_on_an_accelerator_a_step_reads_no_number_and_keeps_no_graph(weight, operations):
    metrics = {"loss_cls": weight * 2, "loss_box": weight * 3}
    with EventStorage() as storage, operations:
        total, _ = put_step_metrics(metrics, 0.125, 3)
    assert operations.conversions == 0
    assert not total.requires_grad
    assert storage.latest()["total_loss"] == (10.0, 3)


@pytest.mark.usefixtures("on_accelerator")
def test_tensors_of_steps_do_not_pile_up_where_nobody_reads():
    fetched: list[int] = []
    with EventStorage() as storage:
        storage.on_sync(lambda: fetched.append(iteration))
        for iteration in range(7_000):
            put_step_metrics({"loss": torch.tensor(1.0)}, 0.125, iteration)
    assert fetched
