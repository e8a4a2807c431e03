"""TensorboardXWriter: scalars, images and histograms for TensorBoard."""

import os
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO

from engine.events.storage import get_event_storage
from engine.events.tensorboard_record import encode_event, encode_record, encode_scalars
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
    def _file(self) -> BinaryIO | None:
        """The event file of `_writer`, to append to it past its queue and thread.

        For one record a period these would cost ten times as much as the record itself. None
        where only TensorBoard can reach the file, as on a remote file system.
        """
        self._writer.flush()  # what it writes first is in the file now
        path = self._writer._get_file_writer().event_writer._file_name
        return open(path, "ab") if os.path.exists(path) else None

    def write(self) -> None:
        storage = get_event_storage()
        for iteration, record in storage.unwritten(self, self._window_size).items():
            # One record for all scalars: `add_scalar` would cost several times as much each.
            self._append(encode_scalars(record), iteration)
        images, histograms = storage.unwritten_images(self), storage.unwritten_histograms(self)
        if images or histograms:
            self._write_media(images, histograms)

    def rewind(self, iteration: int) -> None:
        """Have TensorBoard hide what earlier event files hold for `iteration` and later."""
        self.close()
        if _has_event_file(self._log_dir):
            self._kwargs["purge_step"] = iteration

    def close(self) -> None:
        if "_file" in vars(self):
            if self._file is not None:
                self._file.close()
            del self._file
        if "_writer" in vars(self):
            self._writer.close()
            del self._writer
            self._kwargs.pop("purge_step", None)

    def _write_media(self, images: list, histograms: list[dict]) -> None:
        from torch.utils.tensorboard import summary

        for name, image, iteration in images:
            encoded = summary.image(name, image, dataformats="CHW").SerializeToString()
            self._append(encoded, iteration)
        for histogram in histograms:
            tag, iteration = histogram.pop("tag"), histogram.pop("global_step")
            encoded = summary.histogram_raw(tag, **histogram).SerializeToString()
            self._append(encoded, iteration)

    def _append(self, summary: bytes, iteration: int) -> None:
        """All records go one way: TensorFlow, if that writes `_writer`'s, overwrites other ones."""
        if self._file is None:
            from tensorboard.compat.proto.summary_pb2 import Summary

            parsed = Summary.FromString(summary)
            self._writer._get_file_writer().add_summary(parsed, iteration)
        else:
            self._file.write(encode_record(encode_event(time.time(), iteration, summary)))
            self._file.flush()


def _has_event_file(folder: str) -> bool:
    return os.path.isdir(folder) and any("tfevents" in name for name in os.listdir(folder))
