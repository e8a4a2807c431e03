"""The shared memory of a run and what carries it out."""

from .history import HistoryBuffer
from .json_writer import JSONWriter
from .printer import CommonMetricPrinter
from .storage import EventStorage, NoEventStorageError, get_event_storage, has_event_storage
from .tensorboard import TensorboardXWriter
from .writer import EventWriter

__all__ = [
    "CommonMetricPrinter",
    "EventStorage",
    "EventWriter",
    "HistoryBuffer",
    "JSONWriter",
    "NoEventStorageError",
    "TensorboardXWriter",
    "get_event_storage",
    "has_event_storage",
]
