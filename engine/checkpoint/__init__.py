"""Saving and loading of models and runs."""

from engine.checkpoint.checkpointer import Checkpointer, CheckpointError

__all__ = ["CheckpointError", "Checkpointer"]
