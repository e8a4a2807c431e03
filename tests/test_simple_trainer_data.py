"""SimpleTrainer and its data: loaders that end, epochs, places to start at."""

import itertools
import multiprocessing
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from engine import HookBase, SimpleTrainer, TrainerBase
from engine.data import TrainingSampler, build_train_loader
from engine.hooks import CallbackHook
from small_trainers import Numbered, make_trainer


class EpochRecorder(HookBase):
    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []

    def before_epoch(self) -> None:
        self.begun.append(self.trainer.iter)

    def after_epoch(self) -> None:
        self.ended.append(self.trainer.iter)


@pytest.mark.parametrize(
    ("length", "accumulate", "begun", "ended"),
    [
        (4, 1, [0, 4, 8], [3, 7]),
        (4, 2, [0, 2, 4, 6, 8], [1, 3, 5, 7, 9]),
        (5, 2, [0, 3, 5, 8], [2, 4, 7, 9]),
        (3, 4, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (25, 1, [0], []),
    ],
)
def test_a_loader_that_ends_is_started_again_and_there_an_epoch_ends(
    length, accumulate, begun, ended
):
    model = Numbered(lambda weight, batch: weight * batch)
    hook = EpochRecorder()
    trainer = make_trainer(model, [float(n) for n in range(length)], 1e-3, accumulate=accumulate)
    trainer.register_hooks([hook])
    trainer.train(0, 10)
    assert model.batches == [n % length for n in range(10 * accumulate)]
    assert (hook.begun, hook.ended) == (begun, ended)
    assert trainer.epoch_length == length / accumulate


def test_a_dataloader_shuffles_anew_in_each_epoch():
    data, generator = TensorDataset(torch.arange(8.0)), torch.Generator().manual_seed(0)
    loader = DataLoader(data, batch_size=1, shuffle=True, generator=generator)
    model = Numbered(lambda weight, batch: weight * batch[0].mean())
    make_trainer(model, loader, 1e-3).train(0, 16)
    seen = [batch[0].item() for batch in model.batches]
    assert sorted(seen[:8]) == sorted(seen[8:]) == list(range(8))
    assert seen[:8] != seen[8:]


@pytest.mark.parametrize(
    "empty", [[], DataLoader(TensorDataset(torch.ones(0)), batch_size=2), iter(())]
)
def test_an_empty_loader_is_a_clear_error(model, empty):
    with pytest.raises(ValueError, match="gave no batch: its data set is empty"):
        make_trainer(model, empty).train(0, 5)


def test_a_generator_that_ends_is_a_clear_error(model, batches):
    trainer = make_trainer(model, (batch for batch in batches))
    with pytest.raises(ValueError, match=r"\(generator\) ended after 6 batches and cannot be"):
        trainer.train(0, 20)
    assert trainer.state_dict()["iteration"] == 5


def test_a_loader_without_a_length_has_no_epochs(model, batches):
    class Stream(IterableDataset):
        def __iter__(self) -> Iterator:
            return iter(batches)

    hook = EpochRecorder()
    trainer = make_trainer(model, DataLoader(Stream(), batch_size=None))
    trainer.register_hooks([hook])
    trainer.train(0, 9)
    assert (hook.begun, hook.ended) == ([], [])
    assert trainer.epoch_length is None


def test_an_endless_loader_may_tell_the_length_of_its_epochs(model, batches):
    class Endless:
        epoch_length = 3

        def __iter__(self) -> Iterator:
            while True:
                yield from batches

    hook = EpochRecorder()
    trainer = make_trainer(model, Endless())
    trainer.register_hooks([hook])
    trainer.train(0, 7)
    assert (hook.begun, hook.ended) == ([0, 3, 6], [2, 5])


def test_no_batch_is_taken_before_it_is_needed(model, batches):
    given = []

    def generate():
        for number, batch in enumerate(batches):
            given.append(number)
            yield batch

    trainer = make_trainer(model, generate())
    assert given == []
    trainer.train(0, 2)
    assert given == [0, 1]


def test_the_data_loader_can_be_replaced():
    model = Numbered(lambda weight, batch: weight * batch)
    trainer = make_trainer(model, [1.0, 2.0], 1e-3)
    trainer.train(0, 1)
    trainer.reset_data_loader(lambda: [7.0, 8.0, 9.0])
    trainer.train(1, 3)
    trainer.data_loader = [5.0]
    trainer.train(3, 4)
    assert model.batches == [1.0, 7.0, 8.0, 5.0]
    assert trainer.epoch_of(3) == 3


class Positioned:
    """Gives the numbers from where it was put on."""

    start = 0.0

    def start_at(self, batch: int) -> None:
        self.start = float(batch)

    def __iter__(self) -> Iterator[float]:
        return itertools.count(self.start)


def test_a_loader_that_can_start_anywhere_is_put_where_the_run_begins():
    model = Numbered(lambda weight, batch: weight * batch)
    trainer = make_trainer(model, Positioned(), 1e-3, accumulate=2)
    for start_iter, max_iter in [(0, 2), (0, 1), (7, 9)]:
        trainer.train(start_iter, max_iter)
    assert model.batches == [0, 1, 2, 3, 0, 1, 14, 15, 16, 17]


@pytest.mark.parametrize("fails", [False, True])
def test_the_workers_of_the_training_data_end_with_the_run(fails):
    def fail(trainer: TrainerBase) -> None:
        if fails and trainer.iter == 2:
            raise InterruptedError

    data = [torch.tensor(float(n)) for n in range(8)]
    loader = build_train_loader(data, total_batch_size=4, num_workers=2, seed=0)
    model = Numbered(lambda weight, batch: (weight * batch).mean())
    trainer = make_trainer(model, loader, 1e-3)
    trainer.register_hooks([CallbackHook(before_step=fail)])
    with pytest.raises(InterruptedError) if fails else nullcontext():
        trainer.train(0, 4)
    assert not multiprocessing.active_children()


class Stateful:
    """Counts upwards, and keeps the place in its state."""

    next = 0

    def __iter__(self) -> Iterator[float]:
        while True:
            self.next += 1
            yield float(self.next)

    def state_dict(self) -> dict:
        return {"next": self.next}

    def load_state_dict(self, state: dict) -> None:
        self.next = state["next"]


def test_a_loader_with_state_goes_on_where_it_was_saved():
    first = make_trainer(Numbered(lambda weight, batch: weight * batch), Stateful(), 1e-3)
    first.train(0, 3)
    model = Numbered(lambda weight, batch: weight * batch)
    resumed = make_trainer(model, Stateful(), 1e-3)
    resumed.load_state_dict(first.state_dict())
    resumed.train(resumed.iter + 1, 5)
    assert model.batches == [4.0, 5.0]


def test_the_places_of_another_number_of_processes_are_told(log):
    first = make_trainer(Numbered(lambda weight, batch: weight * batch), Stateful(), 1e-3)
    first.train(0, 3)
    state = first.state_dict() | {"data_states": [{"next": 3}, {"next": 30}]}
    model = Numbered(lambda weight, batch: weight * batch)
    resumed = make_trainer(model, Stateful(), 1e-3)
    resumed.load_state_dict(state)
    resumed.train(resumed.iter + 1, 5)
    assert model.batches == [4.0, 5.0]
    assert "data loaders of 2 processes were saved and there are 1" in log.text


def test_going_back_to_a_state_goes_back_in_the_data():
    class Restarting(Stateful):
        """Reads its place only when an iteration begins, as loaders with workers do."""

        def __iter__(self) -> Iterator[float]:
            return itertools.count(float(self.next))

    model = Numbered(lambda weight, batch: weight * batch)
    trainer = make_trainer(model, Restarting(), 1e-3)
    state = trainer.state_dict()
    trainer.train(0, 3)
    trainer.load_state_dict(state)
    trainer.train(0, 2)
    assert model.batches == [0.0, 1.0, 2.0, 0.0, 1.0]


def test_a_state_without_the_loaders_is_taken_too():
    model = Numbered(lambda weight, batch: weight * batch)
    trainer = make_trainer(model, Stateful(), 1e-3)
    state = trainer.state_dict()
    del state["data_loader"]
    trainer.load_state_dict(state)
    trainer.train(0, 1)
    assert len(model.batches) == 1


def test_the_training_loader_of_the_engine_makes_a_resumed_run_the_same():
    def make(model: nn.Module) -> SimpleTrainer:
        sampler = TrainingSampler(10, seed=3)
        data = [float(number) for number in range(10)]
        loader = build_train_loader(data, sampler=sampler, mapper=float, total_batch_size=2)
        return make_trainer(model, loader, 1e-4)

    straight, resumed = (Numbered(lambda weight, batch: weight * batch.sum()) for _ in range(2))
    make(straight).train(0, 12)
    make(resumed).train(0, 7)
    make(resumed).train(7, 12)
    seen = [[batch.tolist() for batch in model.batches] for model in (straight, resumed)]
    assert seen[0] == seen[1]
    assert make(straight).epoch_length == 5


def test_ways_of_detectron2_to_change_the_data_work():
    model = Numbered(lambda weight, batch: weight * batch)
    trainer = make_trainer(model, [1.0] * 4, 1e-3)
    trainer.train(0, 1)
    trainer._data_loader_iter_obj = iter([2.0, 2.0])
    trainer.train(1, 3)
    trainer._data_loader_iter = iter([3.0])
    trainer.train(3, 4)
    del trainer.data_loader
    trainer.data_loader = [4.0]
    trainer.train(4, 6)
    assert model.batches == [1, 2, 2, 3, 4, 4]


@pytest.mark.parametrize("name", ["_data_loader_iter", "_data_loader_iter_obj"])
def test_an_iterator_of_the_users_own_need_not_know_its_length(name):
    loader = DataLoader(range(4), sampler=TrainingSampler(4))
    model = Numbered(lambda weight, batch: weight * batch.sum())
    trainer = make_trainer(model, loader, 1e-3)
    setattr(trainer, name, iter(loader))  # its len() raises: the sampler has no end
    trainer.train(0, 3)
    assert len(model.batches) == 3


def test_an_iterator_of_the_users_own_that_ends_says_so():
    trainer = make_trainer(Numbered(lambda weight, batch: weight * batch), [1.0], 1e-3)
    trainer._data_loader_iter = iter([2.0, 2.0])
    with pytest.raises(ValueError, match="ended after 2 batches and cannot be started again"):
        trainer.train(0, 5)


class Unsized(list):
    def __len__(self):
        raise RuntimeError("nobody knows")


def test_a_loader_that_does_not_know_its_length_has_no_epochs():
    trainer = make_trainer(Numbered(lambda weight, batch: weight * batch), Unsized([1.0]), 1e-3)
    trainer.train(0, 3)
    assert trainer.epoch_length is None
