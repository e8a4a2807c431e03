import random
from itertools import chain, islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from engine.data import (
    TRAIN_LOADER_REGISTRY,
    InferenceSampler,
    SampleError,
    TrainingSampler,
    build_batch_data_loader,
    build_test_loader,
    build_train_loader,
    trivial_batch_collator,
    worker_init_reset_seed,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Countdown(IterableDataset):
    def __iter__(self):
        return iter([3, 2, 1])


def take(loader, number):
    return [batch.tolist() for batch in islice(loader, number)]


def test_samples_are_stacked_into_tensors():
    samples = [{"image": torch.full((1, 2, 2), float(i)), "label": i} for i in range(8)]
    batch = next(iter(build_train_loader(samples, total_batch_size=4, seed=0)))
    assert batch["image"].shape == (4, 1, 2, 2)
    assert batch["label"].tolist() == batch["image"][:, 0, 0, 0].tolist()


def test_the_trivial_collator_leaves_a_list_of_samples():
    loader = build_train_loader("ab", total_batch_size=2, collate_fn=trivial_batch_collator)
    assert sorted(next(iter(loader))) == ["a", "b"]


def test_the_total_batch_is_divided_over_the_ranks():
    sampler = TrainingSampler(100, rank=1, world_size=4)
    loader = build_batch_data_loader(range(100), sampler, 8)
    assert len(next(iter(loader))) == 2
    assert loader.total_batch_size == 8


def test_the_batch_size_of_one_rank_can_be_given_instead():
    sampler = TrainingSampler(100, rank=1, world_size=4)
    loader = build_batch_data_loader(range(100), sampler, None, single_gpu_batch_size=2)
    assert len(next(iter(loader))) == 2
    assert loader.total_batch_size == 8


def test_a_batch_size_that_the_ranks_cannot_share_is_refused():
    sampler = TrainingSampler(100, rank=0, world_size=4)
    with pytest.raises(ValueError, match=r"10 cannot be split evenly over 4 ranks.* 12$"):
        build_batch_data_loader(range(100), sampler, 10)


@pytest.mark.parametrize("sizes", [(8, 2), (None, None)])
def test_exactly_one_batch_size_is_needed(sizes):
    with pytest.raises(ValueError, match=f"got {sizes[0]} and {sizes[1]}"):
        build_batch_data_loader([1], TrainingSampler(1), sizes[0], single_gpu_batch_size=sizes[1])


@pytest.mark.parametrize("size", [0, -4])
def test_a_batch_has_at_least_one_sample(size):
    with pytest.raises(ValueError, match=f"1 sample or more, got a batch size of {size}"):
        build_train_loader([1], total_batch_size=size)


@pytest.mark.parametrize("build", [build_train_loader, build_test_loader])
def test_an_empty_data_set_is_refused(build):
    options = {"total_batch_size": 1} if build is build_train_loader else {}
    with pytest.raises(ValueError, match="the data set is empty"):
        build([], **options)


def test_a_batch_may_be_larger_than_the_data_set():
    loader = build_train_loader(range(3), total_batch_size=7, seed=0)
    (batch,) = take(loader, 1)
    assert len(batch) == 7
    assert loader.epoch_length == 1


@pytest.mark.parametrize(
    ("options", "length"),
    [({}, 3), ({"drop_last": False}, 4), ({"num_folds": 4}, 13)],
)
def test_an_epoch_is_counted_in_whole_batches(options, length):
    loader = build_train_loader(range(10), total_batch_size=3, **options)
    assert loader.epoch_length == length


def test_an_epoch_of_no_pass_is_refused():
    with pytest.raises(ValueError, match="got num_folds 0"):
        build_train_loader([1], total_batch_size=1, num_folds=0)


def test_grouping_by_aspect_ratio_is_refused():
    with pytest.raises(ValueError, match="aspect_ratio_grouping is for detection"):
        build_train_loader([1], total_batch_size=1, aspect_ratio_grouping=True)


def test_a_sampler_of_torch_is_started_again_when_it_ends():
    loader = build_batch_data_loader(range(4), RandomSampler(range(4)), 2)
    assert loader.epoch_length == 2
    batches = take(loader, 4)
    assert sorted(chain(*batches[:2])) == sorted(chain(*batches[2:])) == [0, 1, 2, 3]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_with_an_inference_sampler_each_sample_comes_once(num_workers):
    def build(**kwargs):
        sampler = InferenceSampler(10)
        return build_batch_data_loader(range(10), sampler, 4, num_workers=num_workers, **kwargs)

    loader = build(drop_last=False, collate_fn=trivial_batch_collator)
    assert len(loader) == 3
    assert list(chain(*loader)) == list(chain(*loader)) == list(range(10))
    assert [len(batch) for batch in build()] == [4, 4]


def test_a_map_style_data_set_needs_a_sampler_and_an_iterable_one_none():
    with pytest.raises(ValueError, match=r"range needs a sampler"):
        build_batch_data_loader(range(3), None, 1)
    with pytest.raises(ValueError, match="Countdown is iterable"):
        build_batch_data_loader(Countdown(), [0], 1)


def test_an_iterable_data_set_is_read_again_when_it_ends():
    loader = build_train_loader(Countdown(), mapper=lambda x: x * 10, total_batch_size=1)
    assert take(loader, 4) == [[30], [20], [10], [30]]
    assert loader.epoch_length is None


def test_an_iterable_data_set_that_gives_no_full_batch_is_an_error():
    with pytest.raises(ValueError, match=r"data set \(Countdown\) gave not one full batch"):
        take(build_train_loader(Countdown(), total_batch_size=4), 1)


def test_the_seed_of_a_given_sampler_is_used_for_augmentation():
    assert build_train_loader([1], total_batch_size=1, sampler=TrainingSampler(1, seed=5)).seed == 5


@pytest.mark.parametrize("seed", [None, -1])
def test_without_a_seed_each_loader_has_its_own(seed):
    one, two = (build_train_loader(range(99), total_batch_size=9, seed=seed) for _ in range(2))
    assert take(one, 5) != take(two, 5)


def test_a_test_loader_reads_every_sample_once_in_order():
    loader = build_test_loader(list(range(5)), mapper=lambda x: x * 10, batch_size=2)
    assert [batch.tolist() for batch in loader] == [[0, 10], [20, 30], [40]]
    assert len(loader) == 3


def test_every_evaluation_sees_the_same_random_mapping():
    def mapper(sample, generator):
        return sample + torch.rand((), generator=generator)

    alone = torch.cat(list(build_test_loader([1, 2, 3], mapper=mapper)))
    workers = torch.cat(list(build_test_loader([1, 2, 3], mapper=mapper, num_workers=2)))
    assert torch.equal(alone, workers)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_evaluation_leaves_the_global_generator_alone(num_workers):
    before = torch.get_rng_state()
    list(build_test_loader([1, 2, 3], num_workers=num_workers))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_error_in_a_test_data_set_names_the_sample():
    class Broken(Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return [10, 11][index]

    with pytest.raises(SampleError, match="sample 2: IndexError"):
        list(build_test_loader(Broken()))


def test_workers_can_be_seeded_for_loaders_made_elsewhere():
    class Draw(Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return random.random(), np.random.rand(), torch.rand(()).item()

    def draw():
        options = {"num_workers": 1, "worker_init_fn": worker_init_reset_seed}
        generator = torch.Generator().manual_seed(3)
        return next(iter(DataLoader(Draw(), batch_size=None, generator=generator, **options)))

    assert draw() == draw()


def test_train_loaders_are_found_by_name():
    assert TRAIN_LOADER_REGISTRY.get("build_train_loader") is build_train_loader


def test_samples_that_cannot_be_stacked_are_told_with_what_to_do():
    samples = [{"image": torch.zeros(2)}, {"image": torch.zeros(3)}]
    loader = build_test_loader(samples, batch_size=2)
    with pytest.raises(RuntimeError, match=r"cannot be stacked: (.|\n)*DATALOADER.COLLATE"):
        next(iter(loader))


def test_a_data_set_smaller_than_a_batch_is_told(log):
    build_train_loader([1, 2, 3], total_batch_size=4, seed=0)
    assert "The data set has 3 samples, and a batch 4" in log.text
