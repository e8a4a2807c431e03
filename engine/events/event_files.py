"""The event files of a folder that TensorboardXWriter made; those of other programs are let be."""

import os
import re
import socket
import time
from glob import escape, glob

from engine.events.tensorboard_record import is_own_head, read_records

_PREFIX = "events.out.tfevents"
_ASIDE = "earlier"


def new_event_file(folder: str, suffix: str = "") -> str:
    """A path for one more file. Readers go by names: it sorts last, whatever the clock says."""
    seconds = int(time.time())
    for inside in ("", f"{_ASIDE}.*"):  # an open TensorBoard goes on from the name of a moved one
        for path in glob(os.path.join(escape(folder), inside, f"{_PREFIX}.*")):
            if match := re.match(r"(\d+)\.", os.path.basename(path)[len(_PREFIX) + 1 :]):
                seconds = max(seconds, int(match[1]) + 1)
    name = f"{_PREFIX}.{seconds:010d}.{socket.gethostname()}.{os.getpid()}.0{suffix}"
    return os.path.join(folder, name)


def own_event_files(folder: str) -> list[str]:
    """Their paths, the oldest first."""
    return list(filter(_is_own, sorted(glob(os.path.join(escape(folder), f"{_PREFIX}.*")))))


def cut_event_files(paths: list[str], iteration: int) -> dict[str, int]:
    """Cut each file at its first record of `iteration` or later, or at one that is torn.

    Returns for each tag the last iteration that stays. What follows in a file was written after the
    checkpoint, whatever its iteration: the run will write it again.
    """
    from tensorboard.compat.proto.event_pb2 import Event

    last: dict[str, int] = {}
    for path in paths:
        size = 0
        with open(path, "rb+") as file:
            for data, end in read_records(file):
                event = Event.FromString(data)
                if event.HasField("summary"):
                    if event.step >= iteration:
                        break
                    last.update({value.tag: event.step for value in event.summary.value})
                size = end
            file.truncate(size)
    return last


def move_aside(paths: list[str], folder: str) -> None:
    """Move what the files hold to a folder inside, which TensorBoard shows as another run.

    Their heads stay: a TensorBoard that is open cannot go on from a file that is gone.
    """
    number = 1
    while os.path.exists(aside := os.path.join(folder, f"{_ASIDE}.{number}")):
        number += 1
    for path in paths:
        with open(path, "rb") as file:
            _, end = next(read_records(file))
            file.seek(0)
            head, has_more = file.read(end), bool(file.read(1))
        if has_more:
            os.makedirs(aside, exist_ok=True)
            os.rename(path, os.path.join(aside, os.path.basename(path)))
            with open(path, "wb") as file:
                file.write(head)


def _is_own(path: str) -> bool:
    with open(path, "rb") as file:
        data, _ = next(read_records(file), (b"", 0))
        return is_own_head(data)
