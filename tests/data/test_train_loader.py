import logging
import multiprocessing
import os
import random
import signal
import subprocess
import time
from itertools import chain, islice

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, DistributedSampler, IterableDataset

from engine.data import (
    TrainingSampler,
    build_batch_data_loader,
    build_train_loader,
    sample_generator,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def augment(sample, generator):
    return {"index": sample, "noise": torch.rand(2, generator=generator)}


def noise_loader(rank=0, world_size=1, seed=3, **options):
    sampler = TrainingSampler(21, seed=seed, rank=rank, world_size=world_size)
    return build_train_loader(
        list(range(21)), mapper=augment, sampler=sampler, total_batch_size=4, **options
    )


def take(loader, number):
    """Each batch as a list of (index, noise)."""
    return [
        list(zip(batch["index"].tolist(), map(tuple, batch["noise"].tolist()), strict=True))
        for batch in islice(loader, number)
    ]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_augmented_batches_do_not_depend_on_the_number_of_workers(num_workers):
    assert take(noise_loader(num_workers=num_workers), 12) == take(noise_loader(), 12)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_starts_at_any_iteration(num_workers):
    loader = noise_loader(num_workers=num_workers)
    loader.start_at(7)
    assert take(loader, 5) == take(noise_loader(), 12)[7:]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_together_load_the_same_global_batches(ranks):
    loaders = [noise_loader(rank, ranks) for rank in range(ranks)]
    for loader in loaders:
        loader.start_at(2)
    parts = zip(*(take(loader, 8) for loader in loaders), strict=True)
    together = [sorted(chain(*batch)) for batch in parts]
    assert together == [sorted(batch) for batch in take(noise_loader(), 10)[2:]]


@settings(max_examples=30, deadline=None)
@given(start=st.integers(0, 50), seed=st.integers(0, 3))
def test_starting_later_gives_the_rest_of_the_same_run(start, seed):
    loader = noise_loader(seed=seed)
    loader.start_at(start)
    assert take(loader, 3) == take(noise_loader(seed=seed), start + 3)[start:]


def test_a_sample_is_augmented_anew_in_each_epoch():
    noise = dict(chain(*take(noise_loader(), 5)))
    again = dict(chain(*take(noise_loader(), 11)[6:]))
    assert all(noise[index] != again[index] for index in noise.keys() & again.keys())


def test_nothing_before_the_start_is_loaded():
    loaded = []
    loader = build_train_loader(
        range(10), mapper=lambda x: loaded.append(x) or x, total_batch_size=2, seed=0
    )
    loader.start_at(1000)
    next(iter(loader))
    assert len(loaded) == 2


def test_looking_at_a_batch_does_not_move_the_start():
    loader = noise_loader()
    first = take(loader, 1)
    assert take(loader, 1) == first


def test_a_state_holds_the_place_and_a_random_seed():
    old, new = noise_loader(seed=None), noise_loader(seed=None)
    stream = iter(old)
    take(stream, 7)
    state = old.state_dict()
    assert state == {
        "iteration": 7,
        "seed": old.seed,
        "sampler": {"seed": old.sampler.seed, "epoch_size": 21},
    }
    new.load_state_dict(state)
    assert take(new, 6) == take(stream, 6)


def test_persistent_workers_follow_a_loaded_state():
    loader = noise_loader(num_workers=1, persistent_workers=True)
    take(loader, 1)
    other = noise_loader(seed=8)
    other.start_at(5)
    loader.load_state_dict(other.state_dict())
    assert take(loader, 4) == take(other, 4)


def test_a_negative_start_is_refused():
    with pytest.raises(ValueError, match="got -1"):
        noise_loader().start_at(-1)


def test_an_endless_loader_has_no_length():
    assert not hasattr(noise_loader(), "__len__")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_set_of_your_own_is_as_exact_with_a_sample_generator(num_workers):
    class Noisy(Dataset):
        def __len__(self):
            return 21

        def __getitem__(self, index):
            return augment(index, sample_generator())

    straight = take(build_train_loader(Noisy(), total_batch_size=4, seed=3), 12)
    late = build_train_loader(Noisy(), total_batch_size=4, seed=3, num_workers=num_workers)
    late.start_at(6)
    assert take(late, 6) == straight[6:]
    assert len({noise for _, noise in chain(*straight)}) == 48


def draw_globally(sample):
    return {"index": sample, "noise": torch.tensor([random.random(), np.random.rand()])}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_global_generators_are_as_exact_when_asked_for(num_workers):
    def loader(**options):
        return build_train_loader(
            list(range(21)),
            mapper=draw_globally,
            total_batch_size=4,
            seed=3,
            seed_global_rngs=True,
            **options,
        )

    late = loader(num_workers=num_workers)
    late.start_at(4)
    assert take(late, 3) == take(loader(), 7)[4:]


def test_global_generators_repeat_with_the_same_workers_from_the_same_start():
    def batches():
        return take(
            build_train_loader(
                list(range(21)), mapper=draw_globally, total_batch_size=4, seed=3, num_workers=1
            ),
            3,
        )

    assert batches() == batches()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_loading_leaves_the_global_generator_alone(num_workers):
    before = torch.get_rng_state()
    take(noise_loader(num_workers=num_workers), 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_torchs_distributed_sampler_is_told_its_epoch_also_when_started_late():
    def loader():
        sampler = DistributedSampler(range(6), num_replicas=1, rank=0, seed=1)
        return build_batch_data_loader(range(6), sampler, 2, seed=1)

    straight = [batch.tolist() for batch in islice(loader(), 9)]
    assert straight[:3] != straight[3:6]
    late = loader()
    late.start_at(4)
    assert [batch.tolist() for batch in islice(late, 5)] == straight[4:]


class Even(TrainingSampler):
    def __iter__(self):
        return (index for index in super().__iter__() if index % 2 == 0)


@pytest.mark.parametrize("start", [0, 3])
def test_a_sampler_that_changes_the_iteration_alone_is_heeded(start):
    loader = build_train_loader(list(range(20)), sampler=Even(20, seed=0), total_batch_size=4)
    loader.start_at(start)
    seen = torch.cat(list(islice(loader, 5))).tolist()
    assert seen == list(islice(Even(20, seed=0), 4 * start, 4 * start + 20))


def test_an_iterable_data_set_is_read_up_to_the_start_and_says_so(caplog):
    class Count(IterableDataset):
        def __iter__(self):
            return iter(range(6))

    loader = build_train_loader(Count(), mapper=augment, total_batch_size=2, seed=0)
    straight = take(loader, 5)
    assert [index for index, _ in straight[3]] == [index for index, _ in straight[0]]
    assert straight[3] != straight[0]  # augmented anew in the second pass
    loader.start_at(4)
    with caplog.at_level(logging.WARNING):
        assert take(loader, 1) == straight[4:]
    assert "is iterable and cannot jump: reading and dropping 4 batches" in caplog.text


def failure(mapper, **options):
    """What reading one epoch of range(8) ends with, as text."""
    try:
        list(islice(build_train_loader(range(8), mapper=mapper, seed=0, **options), 4))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_a_mapper_names_the_sample(num_workers):
    def fail_at_five(sample):
        return 1 / (sample - 5)

    message = failure(fail_at_five, total_batch_size=2, num_workers=num_workers)
    assert message.startswith("SampleError")
    assert "sample 5: ZeroDivisionError: division by zero" in message


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_in_making_a_batch_is_passed_on(num_workers):
    def refuse(batch):
        raise RuntimeError("these do not fit together")

    message = failure(None, total_batch_size=2, collate_fn=refuse, num_workers=num_workers)
    assert message.startswith("RuntimeError")
    assert "these do not fit together" in message
    assert "a worker was lost" not in message


def test_a_worker_that_dies_names_the_sample_it_was_reading():
    def die_at_five(sample):
        if sample == 5:
            time.sleep(0.5)  # until the main process has used up all before it and waits
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    message = failure(die_at_five, total_batch_size=2, num_workers=1)
    assert message.startswith("LostWorkerError")
    assert "Being read: sample 5 (worker 0, pid " in message
    subprocess.run(["true"], check=True)  # a later child is not taken for the dead worker


def test_a_worker_that_hangs_names_the_sample_it_is_reading():
    def hang_at_five(sample):
        time.sleep(2 if sample == 5 else 0)
        return sample

    message = failure(hang_at_five, total_batch_size=2, num_workers=1, timeout=1)
    assert "at batch 1, reading sample 5 (worker 0, pid " in message
    assert "timed out after 1 seconds" in message


def run_rank(rank, folder, results):
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    loader = build_train_loader(list(range(21)), mapper=augment, total_batch_size=4, seed=-1)
    results.put((loader.state_dict(), take(loader, 6)))
    dist.destroy_process_group()


def test_real_ranks_agree_on_a_random_seed_and_share_the_batches(tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=run_rank, args=(r, tmp_path, results)) for r in range(2)]
    for process in processes:
        process.start()
    (state, one), (same_state, two) = (results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert state == same_state
    alone = noise_loader(seed=state["seed"])
    together = [sorted(a + b) for a, b in zip(one, two, strict=True)]
    assert together == [sorted(batch) for batch in take(alone, 6)]
