"""JSONWriter: one JSON object a line."""

import json
import math
import os
from typing import TextIO

from engine.events.storage import get_event_storage
from engine.events.writer import EventWriter
from engine.utils.files import PathManager, atomic_write

# Refuses NaN and infinity with a ValueError. Made once: json.dumps would make it for each line.
_encode_finite = json.JSONEncoder(sort_keys=True, allow_nan=False).encode


class JSONWriter(EventWriter):
    """Appends the scalars to a file, one JSON object a line with its `iteration`::

        {"data_time": 0.0008, "iteration": 19, "lr": 0.02, "time": 0.012, "total_loss": 1.93}

    NaN and infinity are written as null, which every JSON reader takes (pandas reads NaN).
    Read it with `pandas.read_json(file, lines=True)` or `jq`.
    """

    def __init__(self, json_file: str, window_size: int | None = None) -> None:
        self._json_file = os.fspath(json_file)
        self._window_size = window_size
        self._kept: dict[str, int] = {}  # by name, the last iteration in the file after a rewind
        self._file: TextIO | None = None
        self._open().close()  # a file that cannot be written is an error now, not after a period

    def write(self) -> None:
        records = get_event_storage().unwritten(self, self._window_size)
        if self._kept:
            # Of values before the checkpoint, a line written after it may have some already.
            records, self._kept = _without(records, self._kept), {}
        if not records:
            return
        if self._file is None:
            self._file = self._open()
        self._file.write("".join(_line(iteration, record) for iteration, record in records.items()))
        self._file.flush()  # survives the death of the process; no fsync in the training thread

    def rewind(self, iteration: int) -> None:
        """Drop the lines of `iteration` and later; at 0 the old file is kept aside instead."""
        self.close()
        if not os.path.exists(self._json_file):
            return
        _cut_partial_line(self._json_file)
        if iteration > 0:
            self._kept = _drop_lines_from(self._json_file, iteration)
        elif os.path.getsize(self._json_file):
            _move_aside(self._json_file)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> TextIO:
        _cut_partial_line(self._json_file)
        return PathManager.open(self._json_file, "a")


def _line(iteration: int, record: dict[str, float]) -> str:
    try:
        text = _encode_finite({**record, "iteration": iteration})
    except ValueError:
        finite = {name: v if math.isfinite(v) else None for name, v in record.items()}
        text = json.dumps({**finite, "iteration": iteration}, sort_keys=True)
    return text + "\n"


def _without(
    records: dict[int, dict[str, float]], written: dict[str, int]
) -> dict[int, dict[str, float]]:
    rest = {
        iteration: {name: v for name, v in record.items() if written.get(name) != iteration}
        for iteration, record in records.items()
    }
    return {iteration: record for iteration, record in rest.items() if record}


def _cut_partial_line(path: str) -> None:
    """Remove what a killed process left of a last line."""
    if not os.path.isfile(path) or not os.path.getsize(path):
        return
    with open(path, "rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read() != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def _drop_lines_from(path: str, iteration: int) -> dict[str, int]:
    """Returns for each name in the lines that stay the last iteration it is there with."""
    lines, last, dropped = [], {}, 0
    with open(path, encoding="utf-8") as old:
        for number, line in enumerate(old, start=1):
            try:
                record = json.loads(line)
                is_kept = record["iteration"] < iteration
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path}:{number}: not a line of metrics ({error}); "
                    "mend or move the file, then resume"
                ) from error
            if is_kept:
                lines.append(line)
                last.update(dict.fromkeys(record, record["iteration"]))
            else:
                dropped += 1
    if dropped:
        with atomic_write(path, "w") as new:
            new.writelines(lines)
    return last


def _move_aside(path: str) -> None:
    number = 1
    while os.path.exists(f"{path}.{number}"):
        number += 1
    os.rename(path, f"{path}.{number}")
