"""What is printed on the console, and who reads it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Have what is printed inside be dropped in silence where its reader, as `head`, has enough."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # Python shall not try again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
