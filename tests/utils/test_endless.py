import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from engine.utils.endless import EndlessIterator, batches_per_epoch


@given(st.lists(st.integers(), min_size=1), st.integers(0, 50))
def test_an_iterable_is_started_again_whenever_it_ends(items, count):
    taken = list(itertools.islice(EndlessIterator(items), count))
    assert taken == list(itertools.islice(itertools.cycle(items), count))


def test_each_pass_is_a_new_one():
    passes = itertools.count()

    class Loader:
        def __iter__(self):
            number = next(passes)
            return iter([f"{number}a", f"{number}b"])

    assert list(itertools.islice(EndlessIterator(Loader()), 5)) == ["0a", "0b", "1a", "1b", "2a"]


def test_none_is_a_batch_like_any_other():
    assert list(itertools.islice(EndlessIterator([None]), 3)) == [None] * 3


def test_one_that_gives_nothing_is_refused_by_name():
    with pytest.raises(ValueError, match=r"\(list\) gave no batch: its data set is empty"):
        next(EndlessIterator([]))


def test_one_that_cannot_be_started_again_is_refused_with_what_to_pass():
    batches = EndlessIterator(number for number in range(2))
    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(ValueError, match=r"\(generator\) ended after 2 .*\(a DataLoader, a list"):
        next(batches)


def test_an_error_in_the_data_comes_out_as_it_is():
    def broken():
        yield 1
        raise OSError("bad sector")

    batches = EndlessIterator(broken())
    next(batches)
    with pytest.raises(OSError, match="bad sector"):
        next(batches)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class Endless:
    epoch_length = 7

    def __len__(self):
        return 1000


@pytest.mark.parametrize(
    ("loader", "length"),
    [
        ([1, 2, 3], 3),
        (DataLoader(TensorDataset(torch.ones(10)), batch_size=4), 3),
        (DataLoader(Stream()), None),
        (iter([1, 2]), None),
        (itertools.count(), None),
        ([], None),
        (Endless(), 7),
    ],
)
def test_an_epoch_is_as_long_as_the_loader_says(loader, length):
    assert batches_per_epoch(loader) == length
