import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.evaluation import Totals


@given(st.lists(st.integers(0, 10), max_size=200))
def test_sums_are_those_of_all_that_was_added(values):
    totals = Totals()
    totals.add(number=0.5)
    for value in values:
        totals.add(number=value, vector=torch.tensor([value, 1]))
    sums = totals.gather()
    assert sums["number"].item() == sum(values) + 0.5
    if values:
        assert sums["vector"].tolist() == [sum(values), len(values)]


def test_small_values_are_not_lost_beside_a_large_sum():
    totals = Totals()
    totals.add(loss=torch.tensor(2.0**24))
    for _ in range(100):
        totals.add(loss=torch.tensor(1.0))
    assert totals.gather()["loss"].item() == 2**24 + 100


def test_numbers_keep_all_their_digits():
    totals = Totals()
    totals.add(loss=2.0**24 + 1)
    totals.add(loss=torch.tensor(0.5))
    assert totals.gather()["loss"].item() == 2**24 + 1.5


def test_counts_are_exact_integers():
    totals = Totals()
    for _ in range(3):
        totals.add(count=2**53 + 1, hits=torch.tensor([True, False]))
    assert totals.gather()["count"].item() == 3 * (2**53 + 1)
    assert totals.gather()["hits"].tolist() == [3, 0]


def test_gathering_twice_gives_the_same():
    totals = Totals()
    totals.add(loss=1.5)
    assert totals.gather() == totals.gather() == {"loss": 1.5}


def test_nothing_to_sum_is_an_error():
    with pytest.raises(ValueError, match="no batch was evaluated on any rank"):
        Totals().gather()
