"""What fails on one rank fails on all of them, so that none is left waiting."""

import pickle
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from engine.parallel import comm

_ECHO = "_is_of_another_rank"


@contextmanager
def joint_errors() -> Iterator[None]:
    """Raise on every rank what was raised in here on some rank. All ranks must come here.

    A rank's own error comes out as it is; of another rank's the type and the message do, with its
    traceback as a note.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    failures = comm.all_gather(None if error is None else (*_describe(error), _trace(error)))
    if error is not None:
        raise error
    for rank, failure in enumerate(failures):
        if failure is not None:
            kind, message, trace = failure
            echo = kind(f"rank {rank}: {message}")
            vars(echo)[_ECHO] = True
            if hasattr(echo, "add_note"):  # Python 3.11
                echo.add_note(f"On rank {rank}:\n{trace}")
            raise echo


def is_echo(error: BaseException) -> bool:
    """Whether an error is another rank's."""
    return _ECHO in vars(error)


def _describe(error: Exception) -> tuple[type[Exception], str]:
    """The message, and the nearest type that can be made from it and sent to other ranks."""
    for kind in type(error).__mro__:
        with suppress(Exception):
            pickle.dumps(kind(str(error)))
            return kind, str(error)
    return Exception, str(error)


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))
