"""How a model is spread over processes, as PARALLEL says: not at all, replicated or sharded."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from fvcore.common.config import CfgNode
from torch import nn

from engine.parallel import comm
from engine.parallel.ddp import create_ddp_model
from engine.parallel.errors import StrategyError
from engine.parallel.fsdp import create_fsdp_model, is_sharded
from engine.utils.suggest import hint_at

logger = logging.getLogger(__name__)

STRATEGIES = ("none", "ddp", "fsdp")


def check_strategy(name: str) -> None:
    """Refuse a PARALLEL.STRATEGY that is not known."""
    if name not in STRATEGIES:
        raise StrategyError(
            f"PARALLEL.STRATEGY is {name!r}, not one of {', '.join(STRATEGIES)}"
            f"{hint_at(name, STRATEGIES)}"
        )


def prepare_model(cfg: CfgNode, model: nn.Module) -> nn.Module:
    """What has to be done before an optimizer is built for the model: SyncBN, and sharding."""
    check_strategy(cfg.PARALLEL.STRATEGY)
    if cfg.PARALLEL.SYNC_BN:
        model = convert_sync_batchnorm(model)
    if cfg.PARALLEL.STRATEGY == "fsdp":
        return create_fsdp_model(model, **{k.lower(): v for k, v in cfg.PARALLEL.FSDP.items()})
    return model


def wrap_model(cfg: CfgNode, model: nn.Module) -> nn.Module:
    """What may be done after that, so that parameters have their own names until then: DDP, and
    torch.compile."""
    strategy, processes = cfg.PARALLEL.STRATEGY, comm.get_world_size()
    if strategy == "ddp":
        model = create_ddp_model(model, **{k.lower(): v for k, v in cfg.PARALLEL.DDP.items()})
    elif strategy == "none" and processes > 1:
        logger.warning(
            "PARALLEL.STRATEGY is none: %d processes train %d models that know nothing of each "
            "other",
            processes,
            processes,
        )
    if cfg.COMPILE.ENABLED:
        # In place: a wrapper would change the names in checkpoints.
        model.compile(
            backend=cfg.COMPILE.BACKEND,
            mode=cfg.COMPILE.MODE or None,
            dynamic=cfg.COMPILE.DYNAMIC,
            fullgraph=cfg.COMPILE.FULLGRAPH,
        )
    return model


def is_parallel(model: nn.Module) -> bool:
    """Whether it is one model of all processes, replicated or sharded, and not one of many."""
    replicated = nn.parallel.DistributedDataParallel
    return is_sharded(model) or any(isinstance(one, replicated) for one in model.modules())


def convert_sync_batchnorm(model: nn.Module) -> nn.Module:
    """Have batch norm take its statistics over all processes; not on the CPU, with a warning."""
    if comm.get_world_size() == 1:
        return model
    if next(model.parameters()).device.type == "cpu":
        logger.warning(
            "PARALLEL.SYNC_BN: torch's SyncBatchNorm does not run on the CPU; BatchNorm stays as "
            "it is, with statistics of each process's own batch"
        )
        return model
    return nn.SyncBatchNorm.convert_sync_batchnorm(model)


@contextmanager
def no_gradient_sync(model: nn.Module) -> Iterator[None]:
    """Keep the gradients of backward passes in here to this rank, to be sent with those of a later
    one."""
    no_sync: Callable = getattr(model, "no_sync", nullcontext)  # DistributedDataParallel
    if getattr(model, "static_graph", False):  # it must see each pass alike; the sum is the same
        no_sync = nullcontext
    set_sync: Callable = getattr(model, "set_requires_gradient_sync", bool)  # fully_shard
    set_sync(False)
    try:
        with no_sync():
            yield
    finally:
        set_sync(True)
