"""Have torch import its compiler where something is compiled, and not with the first optimizer.

That import takes nearly as long as the rest of torch, in every process of a run and each time it is
started again. Optimizers ask for it only to say that they are not to be compiled, and DDP to learn
how it would be.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch.optim import Optimizer

COMPILER = "torch._dynamo"
_KEPT = "__dynamo_disable"  # where torch keeps what it makes of a function with the compiler's help


def import_compiler_late() -> None:
    """Until the compiler is there, methods of optimizers are called without it."""
    around = torch._disable_dynamo(lambda: None).__code__
    for method in vars(Optimizer).values():
        if getattr(method, "__code__", None) is around and COMPILER not in sys.modules:
            _call_plainly(method, method.__wrapped__)


@contextmanager
def compiler_put_off() -> Iterator[None]:
    """Meanwhile whoever asks how DDP is compiled hears what the compiler says by default."""
    if COMPILER in sys.modules:
        yield
        return
    utils = _StandIn(f"{COMPILER}.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")
    stand_in = vars(torch)["_dynamo"] = _StandIn(COMPILER, utils=utils)
    try:
        yield
    finally:
        if vars(torch).get("_dynamo") is stand_in:
            del torch._dynamo


class _StandIn:
    """Knows a few things of a module, and imports it for all others."""

    def __init__(self, module: str, **known: Any) -> None:
        self._module = module
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        if COMPILER not in sys.modules:
            vars(torch).pop("_dynamo", None)  # modules of it, which import each other, look there
        return getattr(import_module(self._module), name)


def _call_plainly(method: Callable[..., Any], function: Callable[..., Any]) -> None:
    def call(*args: Any, **kwargs: Any) -> Any:
        if COMPILER not in sys.modules:
            return function(*args, **kwargs)
        delattr(function, _KEPT)  # from now on it is torch's
        return method(*args, **kwargs)

    setattr(function, _KEPT, call)
