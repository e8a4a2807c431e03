"""get_event_storage(): the storage that is open here, for code that is not handed one."""

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.events.storage import EventStorage


class _OpenStorages(threading.local):
    def __init__(self) -> None:
        self.stack: list[EventStorage] = []


_OPEN = _OpenStorages()  # in each thread its own
_OPEN_ANYWHERE: "list[EventStorage]" = []


class NoEventStorageError(RuntimeError, AssertionError):
    """No storage is open here. (An AssertionError too: code for detectron2 may catch that.)"""


def get_event_storage() -> "EventStorage":
    """The storage of the innermost `with EventStorage(...)` that this thread is in."""
    stack = _OPEN.stack or _stack_of_caller()
    if stack:
        return stack[-1]
    raise NoEventStorageError(
        "get_event_storage() was called outside of a `with EventStorage(start_iter) as storage:` "
        "block. A trainer opens one for its run; open one around your own loop, or ask "
        "has_event_storage() first. Each thread has its own: enter the same storage with "
        "`with storage:` in a thread that shall use it."
    )


def has_event_storage() -> bool:
    """Whether `get_event_storage()` would find a storage."""
    return bool(_OPEN.stack or _stack_of_caller())


def open_storage(storage: "EventStorage") -> None:
    _OPEN.stack.append(storage)
    _OPEN_ANYWHERE.append(storage)


def close_storage(storage: "EventStorage") -> None:
    stack = _OPEN.stack
    del stack[len(stack) - 1 - stack[::-1].index(storage)]  # the last: it may be there twice
    _OPEN_ANYWHERE.remove(storage)  # in one go: other threads open and close theirs


def _stack_of_caller() -> "list[EventStorage]":
    """What is open where this thread's work comes from: autograd runs backward passes, and with
    them checkpointed forward ones, in threads of its own, which Python knows as dummies."""
    is_foreign = isinstance(threading.current_thread(), threading._DummyThread)
    return _OPEN_ANYWHERE if is_foreign else []
