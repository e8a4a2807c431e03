"""JSONWriter: one JSON object a line."""

import json
import logging
import os
from functools import cached_property
from typing import IO, Any

import orjson

from engine.events.current import get_event_storage
from engine.events.writer import EventWriter, WindowSize, without_written
from engine.utils.append_file import AppendFile
from engine.utils.files import PathManager, absolute

logger = logging.getLogger(__name__)


class JSONWriter(EventWriter):
    """Appends the scalars to a file, one JSON object a line with its `iteration`::

        {"data_time":0.0008,"iteration":19,"lr":0.02,"time":0.012,"total_loss":1.93}

    NaN and infinity are written as null, which every JSON reader takes (pandas reads NaN).
    Read it with `pandas.read_json(file, lines=True)` or `jq`.

    A file that cannot be opened is an error here and now. Later a full disk is none: the lines wait
    in memory until there is space again, and `close` logs an error if some are lost.
    """

    _window_size = WindowSize()
    _last_write = -1  # for a `write` of a subclass, as detectron2's

    def __init__(self, json_file: str, window_size: int | None = None) -> None:
        self._json_file = absolute(json_file)
        self._window_size = window_size
        self._kept: dict[str, int] = {}  # by name, the last iteration in the file after a rewind
        _cut_partial_line(self._json_file)
        self._file = AppendFile(self._json_file)
        self._file.open()
        self._file.close()

    def write(self) -> None:
        records = get_event_storage().unwritten(self, self._window_size)
        if self._kept:
            records, self._kept = without_written(records, self._kept), {}
        if records:
            self._file.write(b"".join([_line(*record) for record in records.items()]))

    @cached_property
    def _file_handle(self) -> IO[str]:
        # For the same.
        return PathManager.open(self._json_file, "a")

    def state_dict(self) -> dict[str, Any]:
        waiting = self._file.take_stock()  # of a full disk: the storage takes it for written
        if not os.path.isfile(self._json_file):
            return {}
        return {"size": os.path.getsize(self._json_file), "waiting": waiting.decode()}

    def restore(self, state: dict[str, Any], iteration: int) -> bool:
        self.close()
        self._kept = {}
        is_whole = _cut_to(self._json_file, state["size"])
        if is_whole and (waiting := state.get("waiting")):
            self._file.write(waiting.encode())
        return is_whole

    def rewind(self, iteration: int) -> None:
        """Drop the lines from `iteration` on; at 0 the old file is kept aside instead."""
        self.close()
        self._kept = {}
        if not os.path.exists(self._json_file):
            return
        _cut_partial_line(self._json_file)
        if iteration > 0:
            self._kept = _cut_lines_from(self._json_file, iteration)
        elif os.path.getsize(self._json_file):
            _move_aside(self._json_file)

    def close(self) -> None:
        self._file.close()
        if handle := vars(self).pop("_file_handle", None):
            handle.close()


def _line(iteration: int, record: dict[str, float]) -> bytes:
    fields = {**record, "iteration": iteration}
    return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def _cut_partial_line(path: str) -> None:
    """Remove what a killed process left of a last line; end one that only lacks its end."""
    if not os.path.isfile(path) or not os.path.getsize(path):
        return
    with open(path, "rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read() == b"\n":
            return
        file.seek(0)
        text = file.read()
        begin = text.rfind(b"\n") + 1
        try:
            json.loads(text[begin:])
            file.write(b"\n")
        except ValueError:
            file.truncate(begin)


def _cut_to(path: str, size: int) -> bool:
    """Cut a file to what it once held; False if it does not look as if it had."""
    if not os.path.isfile(path):
        return False
    if (there := os.path.getsize(path)) < size:
        lacks = "%s has %d bytes, but had %d when the checkpoint was saved: its last lines are lost"
        logger.warning(lacks, path, there, size)
        return False
    with open(path, "rb+") as file:
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                return False
        file.truncate(size)
    return True


def _cut_lines_from(path: str, iteration: int) -> dict[str, int]:
    """Returns for each name in the lines that stay the last iteration it is there with.

    Lines after the first one that goes were written after the checkpoint, whatever their iteration:
    the run will write them again.
    """
    last: dict[str, int] = {}
    size = 0
    with open(path, "rb+") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
                if record["iteration"] >= iteration:
                    break
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path}:{number}: not a line of metrics ({error}); "
                    "mend or move the file, then resume"
                ) from error
            last.update(dict.fromkeys(record, record["iteration"]))
            size += len(line)
        file.truncate(size)
    return last


def _move_aside(path: str) -> None:
    number = 1
    while os.path.exists(f"{path}.{number}"):
        number += 1
    os.rename(path, f"{path}.{number}")
