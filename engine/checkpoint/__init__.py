"""Saving and loading of models and runs."""

from engine.checkpoint.checkpointer import (
    Checkpointer,
    CheckpointError,
    begin_run,
    warn_of_failed_save,
)
from engine.checkpoint.folder import delete_checkpoint

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "begin_run",
    "delete_checkpoint",
    "warn_of_failed_save",
]
