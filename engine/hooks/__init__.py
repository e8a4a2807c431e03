"""What acts around the steps of a trainer."""

from .base import HookBase, Priority
from .callback import CallbackHook
from .lr_scheduler import LRScheduler
from .memory import TorchMemoryStats
from .precise_bn import PreciseBN
from .profiling import AutogradProfiler, TorchProfiler
from .timing import IterationTimer
from .writing import PeriodicWriter

__all__ = [
    "AutogradProfiler",
    "CallbackHook",
    "HookBase",
    "IterationTimer",
    "LRScheduler",
    "PeriodicWriter",
    "PreciseBN",
    "Priority",
    "TorchMemoryStats",
    "TorchProfiler",
]
