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
    name = f"{_PREFIX}.{seconds:010d}.{socket.gethostname()}.{os.getpid()}.engine{suffix}"
    return os.path.join(folder, name)


def event_files(folder: str) -> tuple[list[str], list[str]]:
    """The event files that TensorboardXWriter wrote, the oldest first, and those of others."""
    paths = sorted(glob(os.path.join(escape(folder), f"{_PREFIX}.*")))
    own = list(filter(_is_own, paths))
    return own, [path for path in paths if path not in own]


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


def cut_event_files_to(folder: str, sizes: dict[str, int]) -> bool:
    """Cut our files to what they once held, by name; False if some do not hold as much.

    Of a file that is not named the head stays, as in `move_aside`.
    """
    own, _ = event_files(folder)
    names = {os.path.basename(path): path for path in own}
    if any(name not in names or os.path.getsize(names[name]) < sizes[name] for name in sizes):
        return False
    for name, path in names.items():
        with open(path, "rb+") as file:
            _, end_of_head = next(read_records(file))
            file.truncate(sizes.get(name, end_of_head))
    return True


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
