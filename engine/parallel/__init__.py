"""Many processes as one run."""

from engine.parallel.comm import (
    all_gather,
    create_local_process_group,
    gather,
    get_local_process_group,
    get_local_rank,
    get_local_size,
    get_rank,
    get_world_size,
    is_main_process,
    reduce_dict,
    shared_random_seed,
    synchronize,
)

__all__ = [
    "all_gather",
    "create_local_process_group",
    "gather",
    "get_local_process_group",
    "get_local_rank",
    "get_local_size",
    "get_rank",
    "get_world_size",
    "is_main_process",
    "reduce_dict",
    "shared_random_seed",
    "synchronize",
]
