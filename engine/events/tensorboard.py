"""TensorboardXWriter: scalars, images and histograms for TensorBoard."""

import os
import sys
import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from engine.events.current import get_event_storage
from engine.events.event_files import (
    cut_event_files,
    cut_event_files_to,
    event_files,
    move_aside,
    new_event_file,
)
from engine.events.tensorboard_record import (
    encode_event,
    encode_head,
    encode_record,
    encode_restart,
    encode_scalars,
)
from engine.events.writer import EventWriter, WindowSize, without_written
from engine.utils.append_file import AppendFile
from engine.utils.files import absolute

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorboardXWriter(EventWriter):
    """Writes an event file, made when there is something to write.

    The options are those of `torch.utils.tensorboard.SummaryWriter`, which writes to a remote
    `log_dir` such as "s3://…", and where W&B listens to it (`sync_tensorboard`). Else the file is
    written directly, many times as quickly: there is no queue then. A full disk is no error: what
    cannot be written waits in memory until there is space again, and `close` logs an error if some
    is lost.
    """

    _window_size = WindowSize()
    _last_write = -1  # for a `write` of a subclass, as detectron2's
    # Of a subclass whose constructor is not this one, as with detectron2: it makes the `_writer`.
    _log_dir = ""
    _uses_summary_writer = True
    _purge_step: int | None = None
    _files_before: Sequence[str] = ()  # ours in the folder, where the run began
    _file: AppendFile | None = None
    _kept: dict[str, int] | None = None  # by tag, the last iteration in the files after a rewind

    def __init__(
        self,
        log_dir: str,
        window_size: int | None = None,
        *,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
    ) -> None:
        self._log_dir = absolute(log_dir)
        self._uses_summary_writer = "://" in self._log_dir or _is_summary_writer_watched()
        self._window_size = window_size
        self._purge_step = purge_step  # for the next file
        self._filename_suffix = filename_suffix
        self._options = {"comment": comment, "max_queue": max_queue, "flush_secs": flush_secs}

    @cached_property
    def _writer(self) -> "SummaryWriter":
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(
            self._log_dir,
            purge_step=self._purge_step,
            filename_suffix=self._filename_suffix,
            **self._options,
        )

    def write(self) -> None:
        self.write_media()
        records = get_event_storage().unwritten(self, self._window_size)
        if self._kept:
            records, self._kept = without_written(records, self._kept), None
        if records:
            # One record for all scalars: `add_scalar` would cost several times as much each.
            self._append([(encode_scalars(record), at) for at, record in records.items()])

    def write_media(self) -> None:
        storage = get_event_storage()
        images, histograms = storage.unwritten_images(self), storage.unwritten_histograms(self)
        if images or histograms:
            self._append_media(images, histograms)

    def rewind(self, iteration: int) -> None:
        """Cut what the event files hold from `iteration` on; at 0 they are moved to `earlier.1`.

        A TensorBoard that is open is told too. That is all that happens with a SummaryWriter.
        """
        if not self._log_dir:
            return
        self._begin_anew(iteration)
        if self._uses_summary_writer:
            return
        own, _ = event_files(self._log_dir)
        if iteration > 0:
            self._kept = cut_event_files(own, iteration)
        else:
            move_aside(own, self._log_dir)

    def state_dict(self) -> dict[str, Any]:
        if self._uses_summary_writer:
            return {}
        waiting = self._file.take_stock() if self._file else b""  # as in JSONWriter
        own, _ = event_files(self._log_dir)
        sizes = {os.path.basename(path): os.path.getsize(path) for path in own}
        return {"sizes": sizes, "waiting": waiting.decode("latin-1")}

    def restore(self, state: dict[str, Any], iteration: int) -> bool:
        if self._uses_summary_writer:
            return False
        self._begin_anew(iteration)
        is_whole = cut_event_files_to(self._log_dir, state["sizes"])
        if is_whole and (waiting := state.get("waiting")):
            self._write([waiting.encode("latin-1")])
        return is_whole

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if "_writer" in vars(self):
            self._writer.close()
            if self._log_dir:
                del self._writer
            self._purge_step = None

    def _begin_anew(self, iteration: int) -> None:
        self.close()
        self._file = self._kept = None
        self._purge_step = iteration  # also of a first run: TensorBoard takes that for no restart
        if not self._uses_summary_writer:
            self._files_before, _ = event_files(self._log_dir)

    def _append_media(self, images: list, histograms: list[dict]) -> None:
        from torch.utils.tensorboard import summary

        encoded = [
            (summary.image(name, image, dataformats="CHW").SerializeToString(), iteration)
            for name, image, iteration in images
        ]
        for histogram in histograms:
            tag, iteration = histogram.pop("tag"), histogram.pop("global_step")
            encoded.append((summary.histogram_raw(tag, **histogram).SerializeToString(), iteration))
        self._append(encoded)

    def _append(self, summaries: list[tuple[bytes, int]]) -> None:
        if self._uses_summary_writer:
            from tensorboard.compat.proto.summary_pb2 import Summary

            for summary, at in summaries:
                self._writer._get_file_writer().add_summary(Summary.FromString(summary), at)
            return
        now = time.time()
        self._write([encode_record(encode_event(now, at, summary)) for summary, at in summaries])

    def _write(self, records: list[bytes]) -> None:
        now = time.time()
        if self._file is None:
            path = new_event_file(self._log_dir, self._filename_suffix)
            self._file = AppendFile(path, head=encode_head(now))
        if self._purge_step is not None:
            # It hides all that is in the folder: not where another writer has a file there too.
            own, others = event_files(self._log_dir)
            if not others and own == self._files_before:
                records.insert(0, encode_restart(now, self._purge_step))
            self._purge_step = None
        self._file.write(b"".join(records))


def _is_summary_writer_watched() -> bool:
    """Whether a program has put its own class in the place of the one that torch's SummaryWriter
    writes with, as W&B's `sync_tensorboard` does: then it is to be written with."""
    module = sys.modules.get("torch.utils.tensorboard.writer")
    if module is None:
        return False
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    return module.EventFileWriter is not EventFileWriter
