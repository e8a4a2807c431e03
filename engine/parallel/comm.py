"""Talk between the processes of a run; with a single process all of it works and does nothing."""

import functools
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist

from engine.parallel.sockets import Sockets, allow_connections, end_connections, open_sockets

T = TypeVar("T")

timeout: timedelta | None = None
"""How long processes of groups that are made from now on wait for each other; None: torch's."""

world_sockets: Sockets = set()
"""The connections of the group of all processes, where `launch` made it."""

flag_sockets: Sockets = set()
"""Those of the group for flags, likewise."""

PATIENCE = 5.0  # seconds that flags under way are given to arrive, when groups end

# (the world it was made in, this machine's group): after the world is destroyed it counts no more.
_local_group: tuple[dist.ProcessGroup | None, dist.ProcessGroup] | None = None


def get_world_size() -> int:
    """The number of processes of the run; 1 without a process group."""
    return dist.get_world_size() if _is_distributed() else 1


def get_rank() -> int:
    """This process's number among all; 0 without a process group."""
    return dist.get_rank() if _is_distributed() else 0


def is_main_process() -> bool:
    """Whether this is rank 0."""
    return get_rank() == 0


def get_local_rank() -> int:
    """This process's number on its machine: from the local group, else torchrun's LOCAL_RANK."""
    if (group := _find_local_group()) is not None:
        return dist.get_rank(group)
    return _local_from_environment("LOCAL_RANK", alone=0)


def get_local_size() -> int:
    """The number of processes on this machine: from the local group, else LOCAL_WORLD_SIZE."""
    if (group := _find_local_group()) is not None:
        return dist.get_world_size(group)
    return _local_from_environment("LOCAL_WORLD_SIZE", alone=1)


def create_local_process_group(num_workers_per_machine: int) -> None:
    """Make the group of this machine's processes. All ranks call it, once, after init."""
    global _local_group
    if _find_local_group() is not None:
        raise RuntimeError("the local process group exists already")
    world_size = dist.get_world_size()
    if num_workers_per_machine < 1 or world_size % num_workers_per_machine:
        raise ValueError(
            f"{world_size} processes cannot be {num_workers_per_machine} on each machine; "
            "give the number of processes that one machine runs"
        )
    first = dist.get_rank() // num_workers_per_machine * num_workers_per_machine
    ranks = list(range(first, first + num_workers_per_machine))
    # Else all ranks would take part in making the groups of all machines, one after the other.
    group = dist.new_group(ranks, timeout, use_local_synchronization=True)
    _local_group = (dist.group.WORLD, group)


def get_local_process_group() -> dist.ProcessGroup:
    """The group of this machine's processes."""
    if (group := _find_local_group()) is None:
        raise RuntimeError("no local process group; call comm.create_local_process_group first")
    return group


def synchronize() -> None:
    """Wait until all ranks are here."""
    if get_world_size() == 1:
        return
    if dist.get_backend() == "nccl":
        # Without it NCCL guesses the device from the rank.
        dist.barrier(device_ids=[torch.cuda.current_device()])
    else:
        dist.barrier()


def all_gather(data: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """What each rank gave, in order of rank, on every rank; anything that pickles."""
    if get_world_size() == 1:
        return [data]
    group = group or gloo_group()
    gathered: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, data, group=group)
    return gathered


def gather(data: T, dst: int = 0, group: dist.ProcessGroup | None = None) -> list[T]:
    """What each rank gave, in order of rank, on (global) rank `dst`; [] on the others."""
    if get_world_size() == 1:
        return [data]
    group = group or gloo_group()
    gathered: list = [None] * dist.get_world_size(group) if dist.get_rank() == dst else []
    dist.gather_object(data, gathered or None, dst=dst, group=group)
    return gathered


def shared_random_seed() -> int:
    """A number that is the same on all ranks, drawn from rank 0's NumPy generator.

    All ranks must call it; it repeats when NumPy was seeded the same.
    """
    return all_gather(int(np.random.randint(2**31)))[0]


def reduce_dict(
    input_dict: Mapping[str, torch.Tensor], average: bool = True
) -> dict[str, torch.Tensor]:
    """The mean (or sum) over ranks of each tensor, on every rank, in one collective.

    All ranks must give the same names with the same shapes. Floats come back in float32 or wider,
    means of integers in float64, sums of them in int64.
    """
    if get_world_size() == 1 or not input_dict:
        return dict(input_dict)
    names = sorted(input_dict)  # ranks may have filled their dicts in different orders
    tensors = [input_dict[name].detach() for name in names]
    kinds = [
        torch.promote_types(tensor.dtype, torch.float32)
        if tensor.is_floating_point() or tensor.is_complex()
        else (torch.float64 if average else torch.int64)
        for tensor in tensors
    ]
    dtype = functools.reduce(torch.promote_types, kinds)
    if torch.int64 in kinds and dtype != torch.int64:  # float32 would round the integers
        dtype = torch.promote_types(dtype, torch.float64)
    packed = torch.cat([tensor.reshape(-1).to(dtype) for tensor in tensors])
    dist.all_reduce(packed, group=gloo_group() if packed.is_cpu else None)
    if average:
        packed /= get_world_size()
    parts = packed.split([tensor.numel() for tensor in tensors])
    return {
        name: part.view(tensor.shape).to(kind)
        for name, part, tensor, kind in zip(names, parts, tensors, kinds, strict=True)
    }


def copy_from_rank_0(tensors: Mapping[str, torch.Tensor]) -> None:
    """Give tensors the values that they have on rank 0. All ranks must call it.

    Those that some rank does not have in the same shape, and sparse ones, are left as they are.
    """
    if get_world_size() == 1:
        return
    dense = {name: one for name, one in tensors.items() if one.layout == torch.strided}
    layouts = all_gather({name: (one.shape, one.dtype) for name, one in dense.items()})
    places: dict[torch.device, list[torch.Tensor]] = {}
    for name, layout in layouts[0].items():
        if all(other.get(name) == layout for other in layouts):
            places.setdefault(tensors[name].device, []).append(tensors[name].detach())
    for device, same in places.items():
        packed = torch.cat([one.contiguous().view(-1).view(torch.uint8) for one in same])
        group = gloo_group() if device.type == "cpu" else None
        dist.broadcast(packed, 0, group=group)
        for one, part in zip(same, packed.split([one.nbytes for one in same]), strict=True):
            one.copy_(part.clone().view(one.dtype).view(one.shape))  # a clone is aligned


def gloo_group() -> dist.ProcessGroup:
    """The group of all ranks that carries what is on the CPU."""
    return _gloo_group(dist.group.WORLD)


def do_all_come(seconds: float) -> bool:
    """Whether all ranks call this within some seconds; those that do not may wait for anything."""
    if not _is_distributed():
        return True
    # torch's `monitored_barrier` has rank 0 alone heed the time.
    group, here = flag_group(dist.group.WORLD), torch.zeros(1, device="cpu")
    send = functools.partial(dist.isend, here, group=group)
    receive = functools.partial(dist.irecv, here, group=group)
    others = range(1, get_world_size())
    try:
        if is_main_process():
            _wait_for([receive(src=rank) for rank in others], seconds)
            _wait_for([send(dst=rank) for rank in others], seconds)
        else:
            _wait_for([send(dst=0)], seconds)
            _wait_for([receive(src=0)], 2 * seconds)
    except RuntimeError:
        return False
    return True


def _wait_for(works: Sequence[dist.Work | None], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for work in works:
        if work is not None:
            work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.001)))


def enter_world(backend: str, store: dist.Store, rank: int, world_size: int) -> None:
    """`init_process_group`, with note taken of the connections that it opens."""
    # gloo connects each rank with each, in the groups of all ranks: for gradients or objects, and
    # for flags. Rank 0 has the store's too.
    allow_connections(3 * world_size)
    with _noting_sockets(world_sockets):
        dist.init_process_group(
            backend, timeout=timeout, store=store, rank=rank, world_size=world_size
        )
    with _noting_sockets(flag_sockets):  # before the user's code opens others
        flag_group(dist.group.WORLD)


def leave_groups() -> None:
    """End all groups of this process: whoever still waits for it gets an error at once."""
    global _local_group
    _local_group = None
    _gloo_group.cache_clear()
    flag_group.cache_clear()
    # The store's stay: it may be this process that keeps it for the others.
    port = int(os.environ.get("MASTER_PORT", 0))
    # torch waits for what is under way. Of flags, others may never send theirs.
    timer = threading.Timer(PATIENCE, end_connections, (set(flag_sockets), port))
    timer.daemon = True
    timer.start()
    if _is_distributed():
        dist.destroy_process_group()
    timer.cancel()
    end_connections(world_sockets, except_port=port)


@contextmanager
def _noting_sockets(noted: Sockets) -> Iterator[None]:
    others = open_sockets()
    yield
    noted.clear()
    noted.update(open_sockets() - others)


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _find_local_group() -> dist.ProcessGroup | None:
    if _local_group is None or not _is_distributed():
        return None
    world, group = _local_group
    return group if world is dist.group.WORLD else None


def _local_from_environment(variable: str, alone: int) -> int:
    if variable in os.environ:
        return int(os.environ[variable])
    if get_world_size() == 1:
        return alone
    raise RuntimeError(
        f"which processes share this machine is not known: start with torchrun (it sets "
        f"{variable}) or call comm.create_local_process_group after init_process_group"
    )


@functools.lru_cache(maxsize=1)
def flag_group(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """A group on the CPU with threads of its own: beside gradients, flags would have to queue."""
    return _new_gloo_group()


def _new_gloo_group() -> dist.ProcessGroup:
    return dist.new_group(None, timeout, "gloo")


@functools.lru_cache(maxsize=1)
def _gloo_group(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """A group over all ranks that can carry Python objects, kept for as long as the world is."""
    return world if dist.get_backend(world) == "gloo" else _new_gloo_group()
