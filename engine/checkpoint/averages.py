"""Averaged weights (EMAHook's) in a checkpoint."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def find_averages(checkpoint: Mapping[str, Any]) -> list[dict[str, Tensor]]:
    """The averages by name that the states of hooks hold, whatever their classes are called."""
    parts = [part for part in checkpoint.values() if isinstance(part, Mapping)]
    states = [state for part in parts for state in part.get("hooks", {}).values()]
    return [state["average"] for state in states if state.get("average")]
