import gc
import os
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from engine.parallel import comm


def work(rank: int, folder: Path) -> dict:
    """Everything that needs two processes, on one of them; the tests look at what it returns."""
    import numpy as np

    seen = {
        "size": comm.get_world_size(),
        "rank": comm.get_rank(),
        "main": comm.is_main_process(),
        "unknown machine": error_of(comm.get_local_rank),
        "no local group": error_of(comm.get_local_process_group),
        "three a machine": error_of(lambda: comm.create_local_process_group(3)),
        "all_gather": comm.all_gather({"rank": rank, "text": "x" * (rank + 1)}),
        "gather to 0": comm.gather(f"from {rank}"),
        "gather to 1": comm.gather(f"from {rank}", dst=1),
    }
    os.environ.update(LOCAL_RANK="7", LOCAL_WORLD_SIZE="8")
    seen["torchrun"] = comm.get_local_rank(), comm.get_local_size()
    comm.create_local_process_group(1)
    seen["local group"] = comm.get_local_rank(), comm.get_local_size()
    seen["gather in local group"] = comm.all_gather(rank, comm.get_local_process_group())
    seen["second local group"] = error_of(lambda: comm.create_local_process_group(1))

    np.random.seed(rank)
    seen["seeds"] = [comm.shared_random_seed() for _ in range(2)]

    losses = {"a": torch.tensor(rank + 1.0, requires_grad=True), "b": torch.tensor([rank, 10])}
    if rank == 1:
        losses = dict(reversed(losses.items()))
    seen["mean"] = {name: value.tolist() for name, value in comm.reduce_dict(losses).items()}
    seen["sum"] = {k: v.tolist() for k, v in comm.reduce_dict(losses, average=False).items()}
    large = comm.reduce_dict({"count": torch.tensor(2**40 + rank)}, average=False)["count"]
    seen["exact count"] = large.item()
    beside_float = {"count": torch.tensor(2**24 + 1), "loss": torch.tensor(0.5)}
    sums = comm.reduce_dict(beside_float, average=False)
    seen["count beside a float"] = sums["count"].item(), sums["loss"].item()
    seen["mean count"] = comm.reduce_dict(beside_float)["count"].item()
    seen["half"] = comm.reduce_dict({"a": torch.tensor(60000.0, dtype=torch.half)})["a"].item()
    seen["nothing"] = comm.reduce_dict({})

    comm.synchronize()
    dist.destroy_process_group()
    seen["after the end"] = comm.get_world_size(), comm.get_rank(), comm.get_local_rank()

    dist.init_process_group("gloo", init_method=f"file://{folder}/second", rank=rank, world_size=2)
    seen["in a second world"] = comm.all_gather(rank), comm.get_local_rank()
    comm.create_local_process_group(2)
    seen["its local group"] = comm.get_local_rank(), comm.get_local_size()
    dist.destroy_process_group()
    return seen


def error_of(function) -> str:
    try:
        return f"returned {function()}"
    except (RuntimeError, ValueError) as error:
        return str(error)


def seen(processes, key):
    return [process[key] for process in processes]


def test_each_process_knows_its_place(processes):
    assert seen(processes, "size") == [2, 2]
    assert seen(processes, "rank") == [0, 1]
    assert seen(processes, "main") == [True, False]


def test_the_local_place_comes_from_torchrun_or_the_local_group(processes):
    assert seen(processes, "torchrun") == [[7, 8], [7, 8]]
    assert seen(processes, "local group") == [[0, 1], [0, 1]]
    assert seen(processes, "its local group") == [[0, 2], [1, 2]]


def test_an_unknown_local_place_is_an_error_that_says_what_to_do(processes):
    assert "create_local_process_group" in processes[0]["unknown machine"]
    assert "torchrun" in processes[0]["unknown machine"]
    assert "create_local_process_group" in processes[0]["no local group"]
    assert "2 processes cannot be 3 on each machine" in processes[0]["three a machine"]
    assert "exists already" in processes[0]["second local group"]


def test_all_gather_gives_every_rank_all_objects_in_order(processes):
    expected = [{"rank": 0, "text": "x"}, {"rank": 1, "text": "xx"}]
    assert seen(processes, "all_gather") == [expected, expected]
    assert seen(processes, "gather in local group") == [[0], [1]]


def test_gather_gives_them_to_one_rank(processes):
    assert seen(processes, "gather to 0") == [["from 0", "from 1"], []]
    assert seen(processes, "gather to 1") == [[], ["from 0", "from 1"]]


def test_ranks_share_random_seeds(processes):
    first, second = processes[0]["seeds"]
    assert first != second
    assert processes[1]["seeds"] == [first, second]


def test_reduced_values_are_right_on_every_rank(processes):
    assert seen(processes, "mean") == [{"a": 1.5, "b": [0.5, 10]}] * 2
    assert seen(processes, "sum") == [{"a": 3, "b": [1, 20]}] * 2
    assert seen(processes, "count beside a float") == [[2**25 + 2, 1.0]] * 2
    assert seen(processes, "mean count") == [2**24 + 1] * 2
    assert seen(processes, "nothing") == [{}, {}]


def test_sums_of_integers_are_exact_and_of_halves_do_not_overflow(processes):
    assert seen(processes, "exact count") == [2**41 + 1] * 2
    assert seen(processes, "half") == [60000, 60000]


def test_groups_of_a_destroyed_world_are_forgotten(processes):
    assert seen(processes, "after the end") == [[1, 0, 7], [1, 0, 7]]
    assert seen(processes, "in a second world") == [[[0, 1], 7], [[0, 1], 7]]


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


@pytest.mark.usefixtures("alone")
def test_a_single_process_needs_no_process_group():
    assert (comm.get_world_size(), comm.get_rank(), comm.is_main_process()) == (1, 0, True)
    assert (comm.get_local_size(), comm.get_local_rank()) == (1, 0)
    comm.synchronize()
    assert comm.all_gather("x") == ["x"]
    assert comm.gather("x") == ["x"]
    assert comm.reduce_dict({"loss": torch.tensor(2.0)}) == {"loss": torch.tensor(2.0)}
    assert 0 <= comm.shared_random_seed() < 2**31


def test_under_torchrun_the_local_rank_is_known_before_the_group(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (comm.get_local_rank(), comm.get_local_size()) == (3, 4)


def test_to_leave_the_groups_collects_no_garbage():
    class Loader:
        """Stands for one whose workers would be waited for."""

    loader = Loader()
    loader.itself, end = loader, weakref.ref(loader)
    gc.collect()
    gc.disable()
    try:
        del loader
        comm.leave_groups()
        assert end() is not None
    finally:
        gc.enable()
