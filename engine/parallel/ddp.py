"""DistributedDataParallel around a model, where there is more than one process."""

import inspect
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.autograd import profiler

from engine.parallel import comm
from engine.parallel.errors import StrategyError
from engine.parallel.fsdp import is_spread
from engine.utils.late_compiler import compiler_put_off
from engine.utils.suggest import hint_at

Compression = Literal["none", "fp16", "bf16"]


def create_ddp_model(
    model: nn.Module,
    *,
    fp16_compression: bool = False,
    compression: Compression = "none",
    **kwargs: Any,
) -> nn.Module:
    """The model in DistributedDataParallel; the model itself in a run of one process, or where it
    is replicated or sharded already.

    `kwargs` are those of DistributedDataParallel, of which `gradient_as_bucket_view` is on unless
    given: gradients need no copies then. They are sent as float16 or bfloat16 where `compression`
    says so; `fp16_compression` is detectron2's name for the first.
    """
    if fp16_compression:
        compression = "fp16"
    if compression not in (known := get_args(Compression)):
        raise ValueError(
            f"the compression of gradients is {compression!r}, not one of {', '.join(known)}"
            f"{hint_at(compression, known)}"
        )
    if comm.get_world_size() == 1 or is_spread(model):
        return model
    device = next(model.parameters()).device
    if device.type != "cpu":
        kwargs.setdefault("device_ids", [device])
    elif compression == "bf16":
        raise StrategyError(
            "PARALLEL.DDP.COMPRESSION is 'bf16', and on the CPU gradients cannot be sent so; use "
            "fp16 or none"
        )
    if "forward_sync_buffers" in inspect.signature(nn.parallel.DistributedDataParallel).parameters:
        # The name of it since torch 2.13, which does not leave buffers as each rank has made them.
        if "broadcast_buffers" in kwargs:
            kwargs["forward_sync_buffers"] = kwargs.pop("broadcast_buffers")
    else:
        comm.copy_from_rank_0(dict(model.named_buffers()))
    with compiler_put_off():
        wrapped = DistributedDataParallel(model, **{"gradient_as_bucket_view": True, **kwargs})
    wrapped.settle_buckets()
    if compression != "none":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        hook = getattr(default_hooks, f"{compression}_compress_hook")
        wrapped.register_comm_hook(torch.distributed.group.WORLD, hook)
    return wrapped


class DistributedDataParallel(nn.parallel.DistributedDataParallel):
    """torch's, that labels its forward pass for a profiler only where one runs.

    The label costs more than all that the engine does around a step, as those of optimizers do.
    The compiler is told who is in its forward pass without a context manager, at a tenth of the
    price.
    """

    def settle_buckets(self) -> None:
        """Have gradients be sent in one order from the first step on, where steps can be repeated.

        torch sends those of the first step in one order, and later ones as they come. With three
        ranks or more the last bits of a sum depend on that, and the first step after a resume would
        not be the one of a run that went on.
        """
        is_repeatable = self.device_type == "cpu" or torch.are_deterministic_algorithms_enabled()
        is_rearranged = not (self.find_unused_parameters or self.static_graph)
        reducer: Any = getattr(self, "reducer", None)
        if is_repeatable and is_rearranged and hasattr(reducer, "_push_all_rebuilt_params"):
            reducer._push_all_rebuilt_params()  # the first forward pass makes the buckets of these

    def _build_params_for_reducer(self) -> tuple[list[nn.Parameter], list[bool]]:
        parameters, are_sparse = super()._build_params_for_reducer()
        if self.find_unused_parameters:  # torch itself sends the last ones first, and keeps to it
            return parameters, are_sparse
        # The other way round: that is how gradients come, and `settle_buckets` takes them so.
        return parameters[::-1], are_sparse[::-1]

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        try:
            if (
                not _IS_KNOWN
                or profiler._is_profiler_enabled
                or self._delay_all_reduce_all_params
                or self._use_python_reducer
                or torch.compiler.is_compiling()
            ):
                return super().forward(*inputs, **kwargs)
            inputs, kwargs = self._pre_forward(*inputs, **kwargs)
        except RuntimeError as error:
            if "find_unused_parameters" not in str(error):
                raise
            trained = {
                name: p.grad for name, p in self.module.named_parameters() if p.requires_grad
            }
            unused = [name for name, grad in trained.items() if grad is None]
            who = ", ".join(unused) or "(those of another process)"
            if len(unused) == len(trained):
                who = "(which ones cannot be told, as gradients were cleared since)"
            raise RuntimeError(
                f"parameters got no gradient in the last step: {who}. Use them, freeze them, or "
                "set PARALLEL.DDP.FIND_UNUSED_PARAMETERS (find_unused_parameters=True)"
            ) from error
        outer, _TORCHS._active_ddp_module = _TORCHS._active_ddp_module, self
        try:
            output = self.module(*inputs, **kwargs)
        finally:
            _TORCHS._active_ddp_module = outer
        return self._post_forward(output)


_TORCHS = nn.parallel.DistributedDataParallel

# The parts of the forward pass are torch's own: where it has others, it is called as it is.
_IS_KNOWN = (
    set(_TORCHS.forward.__code__.co_names)
    == {
        *("torch", "autograd", "profiler", "record_function"),
        *("_pre_forward", "_run_ddp_forward", "_post_forward"),
        *("module", "forward", "_delay_all_reduce_all_params"),
    }
    and set(_TORCHS._run_ddp_forward.__code__.co_names)
    == {"_use_python_reducer", "module", "_inside_ddp_forward"}
    and hasattr(_TORCHS, "_active_ddp_module")
)
