import copy
import pickle
from itertools import islice

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset

from engine.data import DatasetFromList, MapDataset, SampleError, ToIterableDataset, TrainingSampler
from engine.data.dataset import read_sample

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Countdown(IterableDataset):
    def __iter__(self):
        return iter([3, 2, 1])


def add_noise(sample, generator):
    return sample + torch.rand((), generator=generator).item()


@pytest.mark.parametrize("serialize", [True, False])
def test_a_list_is_a_data_set(serialize):
    dataset = DatasetFromList([{"x": 1}, {"x": 2}, {"x": 3}], serialize=serialize)
    assert len(dataset) == 3
    assert list(dataset) == [{"x": 1}, {"x": 2}, {"x": 3}]
    assert dataset[-1] == {"x": 3}
    assert len(DatasetFromList([], serialize=serialize)) == 0


@pytest.mark.parametrize("options", [{}, {"serialize": False}])
def test_changing_a_sample_does_not_change_the_list(options):
    dataset = DatasetFromList([{"x": [1]}], **options)
    dataset[0]["x"].append(2)
    assert dataset[0] == {"x": [1]}


def test_without_copies_the_items_themselves_are_given_out():
    items = [object()]
    assert DatasetFromList(items, copy=False, serialize=False)[0] is items[0]


def test_a_mapper_is_applied_to_each_sample():
    dataset = MapDataset([1, 2, 3], lambda x: x * 10)
    assert len(dataset) == 3
    assert list(dataset) == [10, 20, 30]


def test_a_mapper_that_names_a_generator_gets_one_that_follows_from_the_seed():
    dataset = MapDataset([1, 2], add_noise)
    assert dataset[0] == dataset[0]
    assert dataset[0] != dataset[1] - 1
    assert read_sample(dataset, 0, seed=5) == read_sample(dataset, 0, seed=5)
    assert read_sample(dataset, 0, seed=5) != read_sample(dataset, 0, seed=6)


def test_the_seed_reaches_a_mapper_through_other_data_sets():
    dataset = ConcatDataset([Subset(MapDataset([1, 2], add_noise), [1])])
    assert read_sample(dataset, 0, seed=5) == read_sample(dataset, 0, seed=5)
    assert read_sample(dataset, 0, seed=5) != read_sample(dataset, 0, seed=6)


def test_other_optional_arguments_of_a_mapper_are_left_alone():
    assert MapDataset([1], lambda x, training=True: (x, training))[0] == (1, True)
    assert MapDataset(["5"], int)[0] == 5


def test_mappers_one_after_the_other_draw_different_numbers():
    def draw(sample, generator):
        return [*sample, torch.rand((), generator=generator).item()]

    first, second = MapDataset(MapDataset([[]], draw), draw)[0]
    assert first != second


def test_none_from_a_mapper_draws_another_sample_the_same_one_each_time():
    dataset = MapDataset(range(10), lambda x: x if x % 2 else None)
    drawn = [read_sample(dataset, 4, seed) for seed in range(20)]
    assert drawn == [read_sample(dataset, 4, seed) for seed in range(20)]
    assert set(drawn) == {1, 3, 5, 7, 9}


def test_a_mapper_that_always_returns_none_is_an_error():
    with pytest.raises(SampleError, match=r"sample 1: the mapper returned None for it and"):
        MapDataset([1, 2], lambda x: None)[1]


def test_an_error_in_a_mapper_names_the_sample():
    dataset = MapDataset([1, 0], lambda x: 1 / x)
    with pytest.raises(
        SampleError, match=r"sample 1: ZeroDivisionError: division by zero"
    ) as error:
        dataset[1]
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_an_error_in_a_data_set_names_the_sample():
    with pytest.raises(SampleError, match=r"sample 7: KeyError: 7"):
        read_sample({}, 7, seed=0)
    with pytest.raises(SampleError, match=r"^sample 0: ZeroDivisionError: division by zero$"):
        read_sample(MapDataset([0], lambda x: 1 / x), 0, seed=0)


def test_an_iterable_data_set_is_mapped_too_and_none_skips():
    dataset = MapDataset(Countdown(), lambda x: None if x == 2 else x * 10)
    assert isinstance(dataset, IterableDataset)
    assert list(dataset) == [30, 10]


def test_random_mappers_of_an_iterable_data_set_repeat_with_the_seed():
    noisy = [list(MapDataset(Countdown(), add_noise, seed=seed)) for seed in (1, 1, 2)]
    assert noisy[0] == noisy[1] != noisy[2]


def test_an_error_in_an_iterable_data_set_names_the_sample():
    with pytest.raises(SampleError, match="sample 1: TypeError"):
        list(MapDataset(Countdown(), lambda x: x + ("" if x == 2 else 0)))


@pytest.mark.parametrize("dataset", [[1, 2], Countdown()])
def test_a_mapped_data_set_survives_pickling(dataset):
    mapped = MapDataset(dataset, add_noise)
    assert list(pickle.loads(pickle.dumps(mapped))) == list(mapped)


def test_a_sampler_makes_an_iterable_data_set():
    dataset = ToIterableDataset("abc", [2, 0, 1])
    assert list(dataset) == ["c", "a", "b"]
    endless = ToIterableDataset("abc", TrainingSampler(3, shuffle=False))
    assert list(islice(endless, 4)) == ["a", "b", "c", "a"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"shard_chunk_size": 2}, [0, 2, 1, 3, 4, 5]),
        ({"shard_sampler": False}, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]),
    ],
)
def test_workers_share_the_sampler_in_turns(options, expected):
    dataset = ToIterableDataset(range(6), range(6), **options)
    assert list(DataLoader(dataset, batch_size=None, num_workers=2)) == expected


def test_an_iterable_data_set_cannot_take_a_sampler():
    with pytest.raises(TypeError, match="Countdown is an iterable data set already"):
        ToIterableDataset(Countdown(), [0])


@pytest.mark.parametrize("dataset", [[1, 2], Countdown()])
def test_a_mapper_may_be_a_lambda_where_workers_are_spawned(dataset):
    factor = 3
    mapped = MapDataset(dataset, lambda x: factor * x)
    for copied in (pickle.loads(pickle.dumps(mapped)), copy.copy(mapped), copy.deepcopy(mapped)):
        assert list(copied) == list(mapped)
    options = {"num_workers": 1, "multiprocessing_context": "spawn", "batch_size": None}
    assert list(DataLoader(mapped, **options)) == list(mapped)
