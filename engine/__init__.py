"""A PyTorch training engine: a trainer, hooks around each step, one shared event storage."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from engine import hooks
from engine.amp_trainer import AMPTrainer
from engine.events import EventStorage, get_event_storage, has_event_storage
from engine.hooks import *  # noqa: F403
from engine.launch import DEFAULT_TIMEOUT, launch
from engine.simple_trainer import SimpleTrainer
from engine.train_loop import TrainerBase

if TYPE_CHECKING:
    from engine.defaults import (
        DefaultPredictor,
        DefaultTrainer,
        create_ddp_model,
        default_argument_parser,
        default_setup,
        default_writers,
    )

__version__ = "0.1.0"

__all__ = [
    *hooks.__all__,
    "DEFAULT_TIMEOUT",
    "AMPTrainer",
    "DefaultPredictor",
    "DefaultTrainer",
    "EventStorage",
    "SimpleTrainer",
    "TrainerBase",
    "create_ddp_model",
    "default_argument_parser",
    "default_setup",
    "default_writers",
    "get_event_storage",
    "has_event_storage",
    "hooks",
    "launch",
]


def __getattr__(name: str) -> Any:
    # What stands on everything else is loaded when it is first asked for: `import engine` is quick.
    if name in __all__:
        return getattr(import_module("engine.defaults"), name)
    raise AttributeError(f"module 'engine' has no attribute {name!r}")
