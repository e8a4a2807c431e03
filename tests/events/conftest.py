import logging
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


@pytest.fixture(autouse=True)
def _engine_logs_reach_caplog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("engine"), "propagate", True)


@pytest.fixture
def on_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU take the path of those on an accelerator."""
    monkeypatch.setattr(
        "engine.events.scalar.is_deferred", lambda value: isinstance(value, torch.Tensor)
    )


class OperationCounter(TorchDispatchMode):
    """Counts by name the torch operations that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    @property
    def conversions(self) -> int:
        """How many tensors became a number one by one: each would stop an accelerator."""
        return self.counts["_local_scalar_dense"]


@pytest.fixture
def operations() -> OperationCounter:
    return OperationCounter()
