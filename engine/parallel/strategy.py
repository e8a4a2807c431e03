"""How a model is spread over processes, as PARALLEL says: not at all, replicated or sharded."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from fvcore.common.config import CfgNode
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from engine.parallel import comm
from engine.parallel.ddp import create_ddp_model
from engine.parallel.errors import StrategyError
from engine.parallel.fsdp import create_fsdp_model, is_sharded, is_sharded_module
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
    elif strategy == "none" and processes > 1 and not is_parallel(model):
        logger.warning(
            "PARALLEL.STRATEGY is none: %d processes train %d models that know nothing of each "
            "other; the one of rank 0 is saved, and evaluations that split a data set mix them",
            processes,
            processes,
        )
    if cfg.COMPILE.ENABLED:
        _check_compile(cfg.COMPILE.BACKEND, cfg.COMPILE.MODE)
        # In place: a wrapper would change the names in checkpoints.
        model.compile(
            backend=cfg.COMPILE.BACKEND,
            mode=cfg.COMPILE.MODE or None,
            dynamic=cfg.COMPILE.DYNAMIC,
            fullgraph=cfg.COMPILE.FULLGRAPH,
        )
    return model


def _check_compile(backend: str, mode: str) -> None:
    from torch._inductor import list_mode_options

    if backend not in (backends := torch.compiler.list_backends(exclude_tags=())):
        raise StrategyError(
            f"COMPILE.BACKEND is {backend!r}, not one of "
            f"{', '.join(torch.compiler.list_backends())}{hint_at(backend, backends)}"
        )
    if mode and backend == "inductor" and mode not in (modes := list(list_mode_options())):
        raise StrategyError(
            f"COMPILE.MODE is {mode!r}, not one of {', '.join(modes)}{hint_at(mode, modes)}"
        )


def is_parallel(model: nn.Module) -> bool:
    """Whether it is one model of all processes, replicated or sharded, and not one of many."""
    modules = model.modules()
    return is_sharded(model) or any(isinstance(one, DistributedDataParallel) for one in modules)


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
    modules: list[Any] = list(model.modules())  # it may be a part of a module of the user's
    sharded = list(filter(is_sharded_module, modules))
    with ExitStack() as stack:
        for module in modules:
            is_replicated = module is model or isinstance(module, DistributedDataParallel)
            # With a static graph it must see each pass alike; the sum is the same.
            is_static = getattr(module, "static_graph", False)
            if is_replicated and hasattr(module, "no_sync") and not is_static:
                stack.enter_context(module.no_sync())
        for module in sharded:
            module.set_requires_gradient_sync(False, recurse=False)
        try:
            yield
        finally:
            for module in sharded:
                module.set_requires_gradient_sync(True, recurse=False)
