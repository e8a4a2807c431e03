from collections.abc import Callable

import pytest
from torch import nn


@pytest.fixture
def shard(one_rank: None) -> Callable[[nn.Module], nn.Module]:
    """Shards a model over the one rank there is: `shard(model)`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return lambda model: fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
