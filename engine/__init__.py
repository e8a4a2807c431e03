"""A PyTorch training engine: a trainer, hooks around each step, one shared event storage."""

from . import hooks
from .events import EventStorage, get_event_storage, has_event_storage
from .hooks import HookBase
from .train_loop import AMPTrainer, SimpleTrainer, TrainerBase

__version__ = "0.1.0"

__all__ = [
    "AMPTrainer",
    "EventStorage",
    "HookBase",
    "SimpleTrainer",
    "TrainerBase",
    "get_event_storage",
    "has_event_storage",
    "hooks",
]
