"""launch(): one function on many processes, on torch's elastic launcher."""

import os
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from engine.parallel import comm

DEFAULT_TIMEOUT = timedelta(minutes=30)


def launch(
    main_func: Callable[..., Any],
    num_gpus_per_machine: int,
    num_machines: int = 1,
    machine_rank: int = 0,
    dist_url: str | None = None,
    args: tuple = (),
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Any:
    """Call `main_func(*args)` in `num_gpus_per_machine` processes on each machine.

    Without accelerators the processes compute on the CPU. Returns what rank 0 of this machine
    returned. One process on one machine is this one, and so it is with 0 accelerators.
    """
    if num_gpus_per_machine * num_machines <= 1:
        return main_func(*args)
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    endpoint = "localhost:0"
    if num_machines > 1:
        if dist_url in (None, "auto"):
            raise ValueError("--dist-url host:port of machine 0 is needed with --num-machines > 1")
        endpoint = dist_url.removeprefix("tcp://")
    config = LaunchConfig(
        min_nodes=num_machines,
        max_nodes=num_machines,
        nproc_per_node=num_gpus_per_machine,
        run_id=str(uuid.uuid4()) if num_machines == 1 else endpoint,
        rdzv_backend="c10d",
        rdzv_endpoint=endpoint,
        rdzv_configs={"is_host": machine_rank == 0} if num_machines > 1 else {},
        max_restarts=0,
        monitor_interval=0.1,
        start_method="spawn",
    )
    results = elastic_launch(config, _run_worker)(main_func, args, timeout)
    return results[min(results)]


def _run_worker(main_func: Callable[..., Any], args: tuple, timeout: timedelta) -> Any:
    local_rank = int(os.environ["LOCAL_RANK"])
    has_cuda = torch.cuda.is_available()
    if has_cuda:
        torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl" if has_cuda else "gloo", init_method="env://", timeout=timeout)
    try:
        comm.create_local_process_group(int(os.environ["LOCAL_WORLD_SIZE"]))
        comm.synchronize()
        return main_func(*args)
    finally:
        dist.destroy_process_group()
