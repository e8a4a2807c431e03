import logging
from collections import Counter
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def _engine_logs_reach_caplog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("engine"), "propagate", True)


@pytest.fixture
def on_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU take the path of those on an accelerator."""
    monkeypatch.setattr("engine.events.scalar.DEFERS_ALL", True)


class OperationCounter:
    """Counts by name the torch operations that ran inside its `with` blocks."""

    # By the profiler: a TorchDispatchMode takes seconds to import what it needs.

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> None:
        self._profile = torch.autograd.profiler.profile()
        self._profile.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._profile.__exit__(*error)
        self.counts.update({entry.key: entry.count for entry in self._profile.key_averages()})

    @property
    def conversions(self) -> int:
        """How many tensors became a number one by one: each would stop an accelerator."""
        return self.counts["aten::_local_scalar_dense"]

    @property
    def transfers(self) -> int:
        """How often many tensors became numbers at once."""
        return self.counts["aten::stack"]


@pytest.fixture
def operations() -> OperationCounter:
    return OperationCounter()
