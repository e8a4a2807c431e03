"""Saving and loading of models and runs."""

from engine.checkpoint.checkpointer import Checkpointer, CheckpointError, warn_of_failed_save

__all__ = ["CheckpointError", "Checkpointer", "warn_of_failed_save"]
