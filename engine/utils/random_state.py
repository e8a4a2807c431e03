"""The state of the global random generators, as plain values that a checkpoint can hold."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def get_random_state() -> dict[str, Any]:
    """The states of `random`, `numpy.random` and torch; nothing is drawn.

    Torch's are those of the CPU and of the current device of each accelerator in use.
    """
    version, words, gauss = random.getstate()
    return {
        "python": {"version": version, "words": torch.from_numpy(np.array(words)), "gauss": gauss},
        "numpy": _with_tensors(np.random.get_state(legacy=False)),
        "torch": torch.get_rng_state(),
        **{name: module.get_rng_state() for name, module in _accelerators().items()},
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Take back what `get_random_state` gave; accelerators that it does not know are left alone."""
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(_with_arrays(state["numpy"]))
    torch.set_rng_state(state["torch"])
    for name, module in _accelerators().items():
        if name in state:
            module.set_rng_state(state[name])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, all that is random follows from the seed; afterwards it goes on as without."""
    before = get_random_state()
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        set_random_state(before)


def _accelerators() -> dict[str, Any]:
    modules = {"cuda": torch.cuda, "xpu": torch.xpu}
    found: dict[str, Any] = {name: one for name, one in modules.items() if one.is_initialized()}
    return found | ({"mps": torch.mps} if torch.backends.mps.is_available() else {})


def _with_tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_tensors(one) for key, one in value.items()}
    # As int64: torch can do little with the unsigned types of NumPy's generators.
    return torch.from_numpy(value.astype(np.int64)) if isinstance(value, np.ndarray) else value


def _with_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_arrays(one) for key, one in value.items()}
    return value.numpy() if isinstance(value, torch.Tensor) else value
