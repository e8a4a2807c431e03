"""Log lines: coloured on the console of rank 0, plain in one file a rank."""

import copy
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Hashable, Mapping
from contextlib import suppress
from types import FrameType

from tabulate import tabulate
from termcolor import colored
from tqdm import tqdm

from engine.utils.append_file import AppendFile
from engine.utils.files import PathManager

_STDOUT = "stdout"
_COLORS = {"DEBUG": "cyan", "INFO": "green", "WARNING": "yellow"}
_counts: Counter[Hashable] = Counter()
_last_logged: dict[Hashable, float] = {}


def setup_logger(
    output: str | os.PathLike[str] | None = None,
    distributed_rank: int = 0,
    *,
    color: bool = True,
    name: str = "engine",
    abbrev_name: str | None = None,
    enable_propagation: bool = False,
    configure_stdout: bool = True,
) -> logging.Logger:
    """Send the lines of logger `name` to the console (rank 0 only) and to a file.

    `output` is a folder, which gets a `log.txt`, or a file name that ends in .txt or .log; ranks
    other than 0 append `.rankN` to it. `abbrev_name` is shown in place of `name`; '' leaves it out.
    Safe to call again: each line is printed once, and is in each of the files once.
    """
    logger = logging.getLogger(name)
    logger.setLevel(logging.DEBUG)
    logger.propagate = enable_propagation
    shown_name = name if abbrev_name is None else abbrev_name
    if configure_stdout and distributed_rank == 0:
        _handler_to(_STDOUT, logger).setFormatter(_Formatter(name, shown_name, True, color))
    if output is not None:
        path = _log_file(os.fspath(output), distributed_rank)
        _handler_to(path, logger).setFormatter(_Formatter(name, shown_name, False))
    return logger


def log_first_n(
    lvl: int,
    msg: str,
    n: int = 1,
    *,
    name: str | None = None,
    key: str | tuple[str, ...] = "caller",
) -> None:
    """Log only the first `n` times.

    `key` says what counts as the same: the line of code ("caller"), the text ("message"), or
    both (("caller", "message")). `name` is the logger's; by default the calling module's.
    """
    parts = (key,) if isinstance(key, str) else key
    if not parts or not set(parts) <= {"caller", "message"}:
        raise ValueError(f"key must be 'caller', 'message' or a tuple of these, got {key!r}")
    caller = sys._getframe(1)
    values = {"caller": _place(caller), "message": msg}
    if _count("first", *(values[part] for part in parts)) <= n:
        _logger_of(caller, name).log(lvl, msg, stacklevel=2)


def log_every_n(lvl: int, msg: str, n: int = 1, *, name: str | None = None) -> None:
    """Log the first, the n+1st, the 2n+1st … time that this line of code is reached."""
    caller = sys._getframe(1)
    if (_count("every", _place(caller)) - 1) % n == 0:
        _logger_of(caller, name).log(lvl, msg, stacklevel=2)


def log_every_n_seconds(lvl: int, msg: str, n: float = 1, *, name: str | None = None) -> None:
    """Log at most once in `n` seconds from this line of code."""
    caller = sys._getframe(1)
    place, now = _place(caller), time.monotonic()
    if now - _last_logged.get(place, -float("inf")) >= n:
        _last_logged[place] = now
        _logger_of(caller, name).log(lvl, msg, stacklevel=2)


def create_small_table(small_dict: Mapping[str, object]) -> str:
    """A table of one row with the keys as headers: for a handful of results."""
    return tabulate(
        [list(small_dict.values())],
        headers=list(small_dict),
        tablefmt="pipe",
        floatfmt=".3f",
        stralign="center",
        numalign="center",
    )


def _handler_to(destination: str, logger: logging.Logger) -> logging.Handler:
    """The handler of `logger` for stdout or a file; made when there is none yet."""
    for handler in logger.handlers:
        if getattr(handler, "destination", None) == destination:
            return handler
    made = _ConsoleHandler() if destination == _STDOUT else _FileHandler(destination)
    logger.addHandler(made)
    return made


def console_handlers() -> list[logging.Handler]:
    """The handlers that print the engine's lines."""
    return [h for h in logging.getLogger("engine").handlers if isinstance(h, _ConsoleHandler)]


class _ConsoleHandler(logging.Handler):
    """Prints to whatever sys.stdout is at that moment, so that redirects and captures work."""

    destination = _STDOUT
    _is_broken = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            with tqdm.external_write_mode(sys.stdout):  # a progress bar makes room for the line
                print(self.format(record), flush=True)
            self._is_broken = False
        except OSError:  # a full disk that stdout goes to, or a closed pipe: told once
            if not self._is_broken:
                self._is_broken = True
                self.handleError(record)
        except Exception:
            self.handleError(record)


class _FileHandler(logging.Handler):
    """Appends to a file; what a full disk does not take waits in memory."""

    def __init__(self, path: str):
        super().__init__()
        self.destination = path
        self._file = AppendFile(path)
        self._file.open()
        if _ends_amid_line(path):  # of a run that was killed
            self._file.write(b"\n")
        self._is_open = True

    def emit(self, record: logging.LogRecord) -> None:
        if not self._is_open:
            return
        try:
            self._file.write(f"{self.format(record)}\n".encode())
        except Exception:  # of a message that cannot be formatted
            self.handleError(record)

    def close(self) -> None:
        self._is_open = False  # what closing has to tell is for the console
        self._file.close()
        super().close()


class _Formatter(logging.Formatter):
    """`[11/16 04:31:19 engine.hooks INFO] …`; on the console an INFO line has only the time."""

    def __init__(self, name: str, shown_name: str, is_console: bool, color: bool = False):
        super().__init__(datefmt="%m/%d %H:%M:%S")
        self.name, self.shown_name = name, shown_name
        self.is_console, self.color = is_console, color

    def format(self, record: logging.LogRecord) -> str:
        record = copy.copy(record)  # the other handlers get it as it came
        if self.is_console and getattr(record, "is_raised", False) and record.exc_info:
            # Python will print its traceback when the program ends.
            error = record.exc_info[1]
            record.msg = f"{record.getMessage()}: {type(error).__name__}: {error}"
            record.args, record.exc_info, record.exc_text = (), None, None
        if record.name.startswith(self.name):
            record.name = (self.shown_name + record.name[len(self.name) :]).lstrip(".")
        words = [f"[{self.formatTime(record, self.datefmt)}"]
        if not self.is_console or record.levelno > logging.INFO:
            words += [record.name, record.levelname]
        prefix = " ".join(filter(None, words)) + "]"
        # Asked for each line: termcolor's own check is cached, and stdout may be redirected.
        if self.color and sys.stdout and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
            color = _COLORS.get(record.levelname, "red")
            prefix = colored(prefix, color, force_color=True)
        text = f"{prefix} {super().format(record)}"
        # A file name that is no UTF-8 has characters in it that cannot be written.
        return text.encode(errors="backslashreplace").decode()


def _ends_amid_line(path: str) -> bool:
    with suppress(OSError), PathManager.open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read() not in (b"", b"\n")
    return False


def _log_file(output: str, rank: int) -> str:
    path = output if output.endswith((".txt", ".log")) else os.path.join(output, "log.txt")
    path = path if rank == 0 else f"{path}.rank{rank}"
    # One spelling a file, or "out" and "./out" would write each line twice.
    return path if "://" in path else os.path.realpath(path)


def _count(*key: Hashable) -> int:
    _counts[key] += 1
    return _counts[key]


def _place(frame: FrameType) -> Hashable:
    return frame.f_code.co_filename, frame.f_lineno


def _logger_of(frame: FrameType, name: str | None) -> logging.Logger:
    """The named logger, else the calling module's; a script's is `engine`, which is set up."""
    module = frame.f_globals.get("__name__", "__main__")
    return logging.getLogger(name or ("engine" if module == "__main__" else module))
