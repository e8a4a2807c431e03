"""Files: paths through iopath, and writing a file whole or not at all."""

import errno
import io
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, Literal

from iopath.common.file_io import PathHandler
from iopath.common.file_io import PathManager as _PathManager

__all__ = ["PathHandler", "PathManager", "RawFile", "atomic_write", "is_remote", "sync_folder"]

# The project's own: it knows local paths only, until a user registers a PathHandler for others.
PathManager = _PathManager()
PathManager.set_logging(False)  # no telemetry


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is like "s3://bucket/run", not one of this machine."""
    # Of "//" a Path keeps one slash, and C:/ is local.
    return bool(re.match(r"[\w.+-]{2,}:/", os.fspath(path)))


def absolute(path: str | os.PathLike[str]) -> str:
    """The path as it is now, wherever the program changes to; "" and remote ones stay."""
    path = os.fspath(path)
    return os.path.abspath(path) if path and not is_remote(path) else path


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], mode: Literal["wb", "w"] = "wb"
) -> Iterator[IO[Any]]:
    """Open a local file for writing that appears under `path` whole, or not at all.

    The data goes to `<path>.<random>.tmp` and is on the disk before it takes the name. After an
    error the temporary is gone and what was there before still is; only a process killed while it
    writes leaves a `.tmp` behind.
    """
    if mode not in ("wb", "w"):
        raise ValueError(f"mode must be 'wb' or 'w', got {mode!r}: an atomic write starts empty")
    target = os.path.realpath(path)  # a link stays a link
    temporary = f"{target}.{secrets.token_hex(4)}.tmp"
    raw = RawFile(temporary, "x")
    stream: IO[Any] = io.BufferedWriter(raw)
    if mode == "w":
        stream = io.TextIOWrapper(stream, encoding="utf-8")
    try:
        yield stream
        stream.flush()
        if raw.error is not None:
            raise raw.error
        os.fsync(raw.fileno())
        stream.close()
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):  # closing flushes, which fails again on a full disk
            stream.close()
        with suppress(FileNotFoundError):
            os.remove(temporary)
        if isinstance(error, Exception) and raw.error is not None:
            raise raw.error from None
        raise
    sync_folder(os.path.dirname(target))


class RawFile(io.FileIO):
    """A file that remembers why a write failed: torch.save hides it behind "unexpected pos"."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = self.name  # a full disk does not say which
            self.error = error
            raise


def sync_folder(folder: str) -> None:
    """Make a rename survive a power loss, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # some network file systems
            raise
    finally:
        os.close(descriptor)
