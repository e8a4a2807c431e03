"""The shared memory of a run and what carries it out."""

from engine.events.current import NoEventStorageError, get_event_storage, has_event_storage
from engine.events.history import HistoryBuffer
from engine.events.json_writer import JSONWriter
from engine.events.printer import CommonMetricPrinter
from engine.events.storage import EventStorage
from engine.events.tensorboard import TensorboardXWriter
from engine.events.writer import EventWriter

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
