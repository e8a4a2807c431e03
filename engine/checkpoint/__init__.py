"""Saving and loading of models and runs."""

from importlib import import_module
from typing import Any

from engine.checkpoint.averages import find_averages
from engine.checkpoint.checkpointer import Checkpointer, warn_of_failed_save
from engine.checkpoint.file import CheckpointError, MissingCheckpointError
from engine.checkpoint.folder import delete_checkpoint
from engine.checkpoint.last_checkpoint import begin_run, has_checkpoints

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "MissingCheckpointError",
    "begin_run",
    "delete_checkpoint",
    "find_averages",
    "has_checkpoints",
    "warn_of_failed_save",
]


def __getattr__(name: str) -> Any:
    # detectron2 has it here too. It is a hook: an import at the top would point up.
    if name == "PeriodicCheckpointer":
        return import_module("engine.hooks").PeriodicCheckpointer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
