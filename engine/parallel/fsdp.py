"""Fully sharded models: each process holds a part of every weight (torch's `fully_shard`)."""

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from engine.parallel import comm
from engine.parallel.errors import StrategyError
from engine.utils.suggest import hint_at

logger = logging.getLogger(__name__)

T = TypeVar("T")

DTYPES = ("float32", "bfloat16", "float16")


def create_fsdp_model(
    model: nn.Module,
    *,
    shard_classes: Sequence[str] = (),
    param_dtype: str = "",
    reduce_dtype: str = "",
    reshard_after_forward: bool = True,
    cpu_offload: bool = False,
) -> nn.Module:
    """Shard the model in place over all processes; a run of one process leaves it as it is.

    Modules of `shard_classes` are gathered and freed one by one, the rest as one: name the class
    of a model's blocks, such as "TransformerBlock". All ranks get the weights of rank 0. Build the
    optimizer afterwards.
    """
    dtypes = _dtype(param_dtype), _dtype(reduce_dtype)
    blocks = _modules_of(model, shard_classes)
    if comm.get_world_size() == 1 or is_spread(model):
        return model
    _require_torch()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    device = next(model.parameters()).device.type
    options: dict[str, Any] = {
        "mesh": init_device_mesh(device, (comm.get_world_size(),)),
        "mp_policy": MixedPrecisionPolicy(*dtypes),
        "reshard_after_forward": reshard_after_forward,
    }
    if empty := [name for name, p in model.named_parameters() if not p.numel()]:
        raise StrategyError(
            f"PARALLEL.STRATEGY is 'fsdp': the parameter {empty[0]!r} is empty and cannot be "
            "sharded; use ddp"
        )
    if cpu_offload and device != "cpu":
        options["offload_policy"] = CPUOffloadPolicy()
    tied = tied_parameters(model)
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)
    comm.copy_from_rank_0(dict(model.named_buffers()))  # of dtypes too that torch cannot send
    if dtypes[0] not in (None, torch.float32):
        # Its statistics are in float32, and torch takes no weights in another precision with them.
        in_float32 = MixedPrecisionPolicy(torch.float32, dtypes[1], output_dtype=dtypes[0])
        for norm in (one for one in model.modules() if isinstance(one, _BatchNorm) and one.affine):
            fully_shard(norm, **{**options, "mp_policy": in_float32})
    for block in reversed(blocks):  # what is inside comes first
        if not is_sharded_module(block):
            fully_shard(block, **options)
    if not is_sharded_module(model):
        if reshard_after_forward:  # not what the backward pass begins with: torch knows
            del options["reshard_after_forward"]
        fully_shard(model, **options)
    if parted := set(tied) - set(tied_parameters(model)):
        name = min(parted)
        raise StrategyError(
            f"PARALLEL.FSDP.SHARD_CLASSES is {list(shard_classes)}: {name} and {tied[name]} share "
            "their memory and cannot be sharded apart; leave out the classes of the modules that "
            "hold them"
        )
    return model


def device_type_of(model: nn.Module) -> str:
    """What kind of device the model computes on; parts of its weights may wait in host memory."""
    parameter = next(model.parameters(), torch.empty(0))
    if is_sharded_tensor(parameter):
        return parameter.device_mesh.device_type  # type: ignore[attr-defined]
    return parameter.device.type


def is_sharded(model: nn.Module) -> bool:
    """Whether `fully_shard` was applied to the model or a part of it."""
    return any(map(is_sharded_module, model.modules()))


def is_sharded_module(module: nn.Module) -> bool:
    """Whether `fully_shard` was applied to this module itself."""
    return hasattr(type(module), "set_requires_gradient_sync")  # it may give those of another


def is_spread(model: nn.Module) -> bool:
    """Whether a user's code has spread the model over the processes, so that it is to be left as it
    is. Where that is so of some of its parts only, it is an error."""
    for path, part in model.named_modules():
        if isinstance(part, DistributedDataParallel) or is_sharded_module(part):
            if path:
                raise StrategyError(
                    f"{path} is in DistributedDataParallel or sharded already, and "
                    f"{type(model).__name__} as a whole is not: set PARALLEL.STRATEGY to none if "
                    "your code sees to all of its parts, or leave all of them to the engine"
                )
            logger.warning(
                "The model is replicated or sharded already: PARALLEL has no effect on it"
            )
            return True
    return False


def is_sharded_tensor(tensor: Any) -> bool:
    """Whether this rank holds only a part of the tensor (a DTensor)."""
    return hasattr(tensor, "full_tensor")


def reshard(model: nn.Module) -> None:
    """Free gathered weights, so that the next forward pass gathers what the shards hold by then.

    To be called before shards are read or written: after an evaluation some are still gathered.
    """
    for module in model.modules():
        if is_sharded_module(module):
            module.reshard()  # type: ignore[operator]


def shard_like(value: Any, like: torch.Tensor) -> Any:
    """A tensor that each rank has whole, or its part of, cut as `like` is, or whole as that is.

    What is no tensor, or has another shape, is returned unchanged. All ranks call it.
    """
    if not torch.is_tensor(value) or value.shape != like.shape:
        return value
    if is_sharded_tensor(value) and not is_sharded_tensor(like):
        return value.full_tensor()  # type: ignore[attr-defined]
    if is_sharded_tensor(value) or not is_sharded_tensor(like):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    spec = cast(DTensor, like)
    return distribute_tensor(value, spec.device_mesh, spec.placements, src_data_rank=None)


def shard_optimizer_state(
    state_dict: dict[str, Any], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """The state of an optimizer of whole parameters, for one whose parameters may be sharded."""
    state = dict(state_dict["state"])
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    for number, parameter in enumerate(parameters):
        if number in state:
            state[number] = {k: shard_like(v, parameter) for k, v in state[number].items()}
    return {**state_dict, "state": state}


def tied_parameters(model: nn.Module) -> dict[str, str]:
    """For each further name of a parameter that has several, its first name."""
    first: dict[nn.Parameter, str] = {}
    tied = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(parameter, name) != name:
            tied[name] = first[parameter]
    return tied


def batches_in_step(model: Any, batches: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """The batches, each with True: it is this rank's own.

    A sharded model computes on all ranks together: one that has no batch left goes on with its last
    one, and False, for as long as others have some; with that of another if it never had one. All
    ranks ask together then.
    """
    if not isinstance(model, nn.Module) or not is_sharded(model):
        yield from ((batch, True) for batch in batches)
        return
    iterator, last = iter(batches), list[T]()
    while True:
        own = list(itertools.islice(iterator, 1))
        has_own = {"own": torch.tensor(bool(own), device="cpu")}
        ranks = comm.reduce_dict(has_own, average=False)["own"].item()
        if not ranks:
            return
        if not last and ranks < comm.get_world_size():
            last = next(filter(None, comm.all_gather(own)))
        last = own or last
        yield last[0], bool(own)


def _modules_of(model: nn.Module, classes: Sequence[str]) -> list[nn.Module]:
    there = sorted({type(module).__name__ for module in model.modules()})
    for name in classes:
        if name not in there:
            raise StrategyError(
                f"PARALLEL.FSDP.SHARD_CLASSES: the model has no module of a class {name!r}"
                f"{hint_at(str(name), there)} (there are: {', '.join(there)})"
            )
    modules = [module for module in model.modules() if type(module).__name__ in classes]
    for module in modules:
        is_container = isinstance(module, nn.ModuleList | nn.ModuleDict)
        if is_container and type(module).forward is nn.Module.forward:
            raise StrategyError(
                f"PARALLEL.FSDP.SHARD_CLASSES: a {type(module).__name__} is not called itself and "
                "cannot be sharded; name the class of what it holds"
            )
    return modules


def _dtype(name: str) -> torch.dtype | None:
    if name and name not in DTYPES:
        raise ValueError(
            f"{name!r} is not a precision for sharded weights: use {', '.join(DTYPES)} or '' for "
            f"that of the model{hint_at(name, DTYPES)}"
        )
    return getattr(torch, name) if name else None


def _require_torch() -> None:
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):
        raise ImportError(f"sharded models need torch 2.7 or later, this is {torch.__version__}")
