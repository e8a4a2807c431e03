"""TensorboardXWriter: scalars, images and histograms for TensorBoard."""

import os
import struct
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO

import google_crc32c

from engine.events.storage import get_event_storage
from engine.events.writer import EventWriter

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorboardXWriter(EventWriter):
    """Writes an event file, made when there is something to write.

    `kwargs` go to `torch.utils.tensorboard.SummaryWriter`.
    """

    def __init__(self, log_dir: str, window_size: int | None = None, **kwargs: Any) -> None:
        self._log_dir = os.fspath(log_dir)
        self._window_size = window_size
        self._kwargs = kwargs

    @cached_property
    def _writer(self) -> "SummaryWriter":
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(self._log_dir, **self._kwargs)

    @cached_property
    def _file(self) -> BinaryIO:
        """The event file of `_writer`, to append to it past its queue and thread.

        For one record a period these would cost ten times as much as the record itself.
        """
        self._writer.flush()  # what it writes first is in the file now
        return open(self._writer._get_file_writer().event_writer._file_name, "ab")

    def write(self) -> None:
        storage = get_event_storage()
        for iteration, record in storage.unwritten(self, self._window_size).items():
            self._write_scalars(iteration, record)
        for name, image, iteration in storage.unwritten_images(self):
            self._writer.add_image(name, image, iteration)
        for histogram in storage.unwritten_histograms(self):
            self._writer.add_histogram_raw(**histogram)

    def rewind(self, iteration: int) -> None:
        """Have TensorBoard hide what earlier event files hold for `iteration` and later."""
        self.close()
        if _has_event_file(self._log_dir):
            self._kwargs["purge_step"] = iteration

    def close(self) -> None:
        if "_file" in vars(self):
            self._file.close()
            del self._file
        if "_writer" in vars(self):
            self._writer.close()
            del self._writer
            self._kwargs.pop("purge_step", None)

    def _write_scalars(self, iteration: int, record: dict[str, float]) -> None:
        """One record for all scalars: `add_scalar` would cost several times as much each."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in record.items()]
        event = Event(wall_time=time.time(), step=iteration, summary=Summary(value=values))
        self._file.write(_record(event.SerializeToString()))
        self._file.flush()


def _record(data: bytes) -> bytes:
    """The data framed as a record of an event file: its length and checksums around it."""
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _has_event_file(folder: str) -> bool:
    return os.path.isdir(folder) and any("tfevents" in name for name in os.listdir(folder))
