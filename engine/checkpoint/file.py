"""A checkpoint that is one file."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from engine.checkpoint.safetensors_file import import_safetensors


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; says which file and why."""


class MissingCheckpointError(CheckpointError, FileNotFoundError):
    """A checkpoint that is not there."""


def read_file(path: str) -> dict[str, Any]:
    """What a .pth or .safetensors holds, with the weights as "model". Never runs code."""
    if path.endswith(".safetensors"):
        load_file = import_safetensors().load_file
        with unreadable_is_refused(path):
            return {"model": load_file(path)}
    with unreadable_is_refused(path):
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(loaded, dict) and "model" not in loaded and "state_dict" in loaded:
        loaded = {"model": loaded["state_dict"]}  # as Lightning and others save
    if isinstance(loaded, dict) and isinstance(loaded.get("model", loaded), dict):
        return loaded if "model" in loaded else {"model": loaded}
    raise CheckpointError(f"the checkpoint {path} cannot be loaded: it holds no dict of weights")


@contextmanager
def unreadable_is_refused(path: str) -> Iterator[None]:
    """Have whatever fails in reading a checkpoint be a CheckpointError that names it."""
    try:
        yield
    except PermissionError:
        raise CheckpointError(f"the checkpoint {path} may not be read: permission denied") from None
    except Exception as error:
        reason = f"it is damaged, or not a checkpoint ({type(error).__name__})"
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            # Without torch's advice to load it unsafely.
            reason = f"it holds {found[1]}, which is no plain value: loading it could run code"
        raise CheckpointError(f"the checkpoint {path} cannot be loaded: {reason}") from None
