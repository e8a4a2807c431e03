"""What fails on one rank fails on all of them, so that none is left waiting."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from engine.parallel import comm


@contextmanager
def joint_errors() -> Iterator[None]:
    """Raise on every rank what was raised in here on some rank. All ranks must come here.

    A rank's own error comes out as it is; of another rank's the type and the message do.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    failures = comm.all_gather(None if error is None else _describe(error))
    if error is not None:
        raise error
    for rank, failure in enumerate(failures):
        if failure is not None:
            kind, message = failure
            raise kind(f"rank {rank}: {message}")


def _describe(error: Exception) -> tuple[type[Exception], str]:
    """The message, and the nearest type that can be made from it and sent to other ranks."""
    for kind in type(error).__mro__:
        with suppress(Exception):
            pickle.dumps(kind(str(error)))
            return kind, str(error)
    return Exception, str(error)
