"""The shared memory of a run and what carries it out."""

from engine.events.current import NoEventStorageError, get_event_storage, has_event_storage
from engine.events.history import HistoryBuffer
from engine.events.json_writer import JSONWriter
from engine.events.printer import CommonMetricPrinter
from engine.events.storage import EventStorage
from engine.events.tensorboard import TensorboardXWriter
from engine.events.trackers import MLflowWriter, TrackioWriter, WandbWriter
from engine.events.writer import EventWriter

__all__ = [
    "CommonMetricPrinter",
    "EventStorage",
    "EventWriter",
    "HistoryBuffer",
    "JSONWriter",
    "MLflowWriter",
    "NoEventStorageError",
    "TensorboardXWriter",
    "TrackioWriter",
    "WandbWriter",
    "get_event_storage",
    "has_event_storage",
]
