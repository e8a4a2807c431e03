"""Saving and loading of models and runs."""

from engine.checkpoint.checkpointer import Checkpointer, CheckpointError, warn_of_failed_save
from engine.checkpoint.folder import delete_checkpoint
from engine.checkpoint.last_checkpoint import begin_run

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "begin_run",
    "delete_checkpoint",
    "warn_of_failed_save",
]
