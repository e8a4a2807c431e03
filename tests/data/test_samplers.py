import logging
from collections import Counter
from itertools import cycle, islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.data import (
    SAMPLER_REGISTRY,
    InferenceSampler,
    RandomSubsetTrainingSampler,
    RepeatFactorTrainingSampler,
    TrainingSampler,
)


def take(sampler, number, start=0):
    return list(islice(sampler.iter_from(start), number))


def test_each_pass_holds_every_sample_once_in_another_order():
    sampler = TrainingSampler(10, seed=0)
    first, second = take(sampler, 10), take(sampler, 10, start=10)
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_without_shuffling_the_samples_come_in_order():
    assert take(TrainingSampler(3, shuffle=False), 7) == [0, 1, 2, 0, 1, 2, 0]


def test_the_order_follows_from_the_seed():
    assert take(TrainingSampler(50, seed=1), 100) == take(TrainingSampler(50, seed=1), 100)
    assert take(TrainingSampler(50, seed=1), 50) != take(TrainingSampler(50, seed=2), 50)


@pytest.mark.parametrize("seed", [None, -1])
def test_no_seed_or_a_negative_one_gives_another_order_each_time(seed):
    assert take(TrainingSampler(50, seed=seed), 50) != take(TrainingSampler(50, seed=seed), 50)


def samplers(size, seed, **ranks):
    factors = [0.5 + (index % 4) * 0.75 for index in range(size)]
    return [
        TrainingSampler(size, seed=seed, **ranks),
        RandomSubsetTrainingSampler(size + 1, 0.6, seed_shuffle=seed, seed_subset=1, **ranks),
        RepeatFactorTrainingSampler(factors, seed=seed, **ranks),
    ]


@settings(max_examples=50, deadline=None)
@given(
    size=st.integers(1, 12),
    seed=st.integers(0, 5),
    ranks=st.integers(1, 5),
    start=st.integers(0, 60),
)
def test_ranks_together_read_one_stream_from_any_place(size, seed, ranks, start):
    for which, alone in enumerate(samplers(size, seed, rank=0, world_size=1)):
        stream = list(islice(alone, 120))
        for rank in range(ranks):
            sampler = samplers(size, seed, rank=rank, world_size=ranks)[which]
            places = [place for place in range(start, 120) if place % ranks == rank]
            assert take(sampler, len(places), start) == [stream[place] for place in places]


def test_starting_late_builds_one_pass_only():
    epochs = []

    class Counting(TrainingSampler):
        def order(self, epoch):
            epochs.append(epoch)
            return super().order(epoch)

    take(Counting(10, seed=0), 5, start=10**12 + 3)
    assert epochs == [10**11]


def test_a_subclass_for_detectron2_is_told_what_to_override():
    with pytest.raises(TypeError, match=r"Balanced\._infinite_indices.*override order\(epoch\)"):

        class Balanced(TrainingSampler):
            def _infinite_indices(self):
                yield from cycle([0, 1])


def test_a_saved_state_brings_a_random_seed_back():
    for old, new in zip(samplers(9, None), samplers(9, None), strict=True):
        new.load_state_dict(old.state_dict())
        assert take(new, 30) == take(old, 30)


def test_a_data_set_of_another_size_is_noticed_when_the_state_is_loaded(caplog):
    with caplog.at_level(logging.WARNING):
        TrainingSampler(10).load_state_dict(TrainingSampler(9).state_dict())
    assert "had 9 samples" in caplog.text
    assert "has 10 now" in caplog.text


def test_a_subset_is_the_same_in_every_pass_and_follows_from_its_own_seed():
    sampler = RandomSubsetTrainingSampler(100, 0.1, seed_shuffle=1, seed_subset=2)
    assert sampler.epoch_size == 10
    assert set(take(sampler, 10)) == set(take(sampler, 10, start=10))
    other_order = RandomSubsetTrainingSampler(100, 0.1, seed_shuffle=3, seed_subset=2)
    assert set(take(other_order, 10)) == set(take(sampler, 10))
    assert take(other_order, 10) != take(sampler, 10)


@pytest.mark.parametrize("ratio", [0, -0.5, 1.5])
def test_a_ratio_outside_0_to_1_is_refused(ratio):
    with pytest.raises(ValueError, match=f"at most 1, got {ratio}"):
        RandomSubsetTrainingSampler(10, ratio)


def test_a_ratio_that_leaves_no_sample_is_refused():
    with pytest.raises(ValueError, match=r"0.01 of 10 samples leaves none"):
        RandomSubsetTrainingSampler(10, 0.01)


def test_whole_repeat_factors_are_met_in_every_pass():
    sampler = RepeatFactorTrainingSampler([1, 2, 0, 3], seed=0)
    for epoch in range(5):
        assert Counter(sampler.order(epoch).tolist()) == {0: 1, 1: 2, 3: 3}


@settings(max_examples=50, deadline=None)
@given(factors=st.lists(st.floats(0.1, 5), min_size=1, max_size=20), epoch=st.integers(0, 100))
def test_repeat_factors_are_rounded_up_or_down_and_all_passes_are_equally_long(factors, epoch):
    sampler = RepeatFactorTrainingSampler(factors, seed=0)
    counts = torch.bincount(sampler.order(epoch), minlength=len(factors))
    assert len(sampler.order(epoch)) == sampler.epoch_size
    assert sum(factors) <= sampler.epoch_size + 1e-6
    assert sampler.epoch_size < sum(factors) + 1
    assert ((counts - sampler.repeat_factors).abs() < 1 + 1e-6).all()


def test_over_many_passes_samples_appear_in_proportion_to_their_factors():
    sampler = RepeatFactorTrainingSampler([0.3, 1.0, 1.6, 2.1], seed=0)
    counts = sum(torch.bincount(sampler.order(epoch), minlength=4) for epoch in range(2000))
    torch.testing.assert_close(counts / 2000, torch.tensor([0.3, 1.0, 1.6, 2.1]), atol=0.05, rtol=0)


def test_without_shuffling_repeats_stand_together():
    sampler = RepeatFactorTrainingSampler([2, 1, 2], shuffle=False, seed=0)
    assert take(sampler, 5) == [0, 0, 1, 2, 2]


@pytest.mark.parametrize("factors", [[1, -1], [float("nan")], [[1.0]]])
def test_repeat_factors_must_be_numbers_from_0_on(factors):
    with pytest.raises(ValueError, match="one finite number ≥ 0 for each sample"):
        RepeatFactorTrainingSampler(factors)


def test_rare_categories_get_larger_factors():
    labels = [{"label": 0}] * 9 + [{"label": 1}]
    from_frequency = RepeatFactorTrainingSampler.repeat_factors_from_category_frequency
    assert from_frequency(labels, 0.4).tolist() == [1.0] * 9 + [2.0]
    assert from_frequency(labels, 0.4, sqrt=False).tolist() == [1.0] * 9 + [4.0]


def test_a_sample_takes_the_factor_of_its_rarest_category():
    samples = [
        {"annotations": [{"category_id": 0}, {"category_id": 0}, {"category_id": 1}]},
        {"annotations": [{"category_id": 0}]},
        {"annotations": []},
        {"label": [0, 2]},
    ]
    factors = RepeatFactorTrainingSampler.repeat_factors_from_category_frequency(samples, 1.0)
    assert factors.tolist() == pytest.approx([2.0, (4 / 3) ** 0.5, 1.0, 2.0])


def test_a_sample_without_a_category_is_refused():
    with pytest.raises(KeyError, match=r"needs 'label' or 'annotations'.*\['image'\]"):
        RepeatFactorTrainingSampler.repeat_factors_from_category_frequency([{"image": 0}], 0.1)


@given(size=st.integers(1, 50), ranks=st.integers(1, 9))
def test_inference_shares_are_contiguous_and_cover_every_sample_once(size, ranks):
    shares = [list(InferenceSampler(size, rank=rank, world_size=ranks)) for rank in range(ranks)]
    assert [index for share in shares for index in share] == list(range(size))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert len(InferenceSampler(size, rank=0, world_size=ranks)) == len(shares[0])


@pytest.mark.parametrize("sampler", [TrainingSampler, InferenceSampler])
def test_an_empty_data_set_is_refused(sampler):
    with pytest.raises(ValueError, match=r"got 0 samples: the data set is empty"):
        sampler(0)
    with pytest.raises(TypeError, match=r"needs the number of samples, got \[1\]"):
        sampler([1])


def test_samplers_are_found_by_name():
    assert SAMPLER_REGISTRY.get("RepeatFactorTrainingSampler") is RepeatFactorTrainingSampler
