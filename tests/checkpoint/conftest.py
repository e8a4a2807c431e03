from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist
from torch import nn


@pytest.fixture(scope="module")
def one_rank() -> Iterator[None]:
    """A process group of this process alone, in which models can be sharded."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def shard(one_rank: None) -> Callable[[nn.Module], nn.Module]:
    """Shards a model over the one rank there is: `shard(model)`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return lambda model: fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
