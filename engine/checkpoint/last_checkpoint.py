"""The file `last_checkpoint`: which checkpoint of a folder a resumed run goes on from."""

import os
import re

from engine.utils.files import atomic_write

NUMBERED = re.compile(r".*_(\d{7,})(\.pth)?")
FINAL = re.compile(r".+_final(\.pth)?")
_NONE_YET = "(none yet)"  # until a run that has begun there saves


def tag_last(folder: str, name: str) -> None:
    """Have a resumed run go on from the checkpoint of that name."""
    with atomic_write(os.path.join(folder, "last_checkpoint"), "w") as file:
        file.write(name)


def begin_run(folder: str) -> bool:
    """Have a resume no longer go on from what an earlier run has left in the folder.

    Returns whether there is something.
    """
    is_used = has_checkpoints(folder)
    if is_used:
        tag_last(folder, _NONE_YET)
    return is_used


def has_checkpoints(folder: str) -> bool:
    """Whether a run has saved something in the folder."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return "last_checkpoint" in names or any(
        NUMBERED.fullmatch(name) or FINAL.fullmatch(name) for name in names
    )


def has_begun_anew(folder: str) -> bool:
    """Whether a run has begun in the folder since what is there was saved."""
    path = os.path.join(folder, "last_checkpoint")
    if not os.path.isfile(path):
        return False
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip() == _NONE_YET
