"""Get through a shortage of GPU memory."""

import functools
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)


def retry_if_cuda_oom(func: Callable[P, R]) -> Callable[P, R]:
    """Make `func` try again when the GPU is out of memory.

    First after emptying the allocator's cache, then with tensor arguments moved to the CPU, in
    which case what it returns is on the CPU too. `func` must be safe to call again after it
    failed; tensors inside lists or objects are not moved.
    """

    @functools.wraps(func)
    def retrying(*args: P.args, **kwargs: P.kwargs) -> R:
        # `suppress` rather than `except`: a live exception would hold the failed call's tensors.
        with suppress(torch.cuda.OutOfMemoryError):
            return func(*args, **kwargs)
        torch.cuda.empty_cache()
        with suppress(torch.cuda.OutOfMemoryError):
            return func(*args, **kwargs)
        logger.info("Out of GPU memory in %s: running it on the CPU", func)
        return func(
            *(_on_cpu(arg) for arg in args), **{name: _on_cpu(arg) for name, arg in kwargs.items()}
        )

    return retrying


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value
