"""EventStorage: the shared memory of a run. What is measured goes in, what is written comes out."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from ..utils.logger import log_first_n
from ..utils.suggest import did_you_mean
from ..utils.unique_names import unique_names
from .history import HistoryBuffer
from .media import as_image, as_samples, as_uint8, summarize_histogram
from .scalar import as_scalar, fetch

KEPT_VALUES = 2_000  # of each scalar; the whole curve is in the files that writers make
MAX_DEFERRED = 1_000  # tensors that wait for a writer, before they are fetched without one
MAX_MEDIA = 200  # images, and as many histograms, that wait for a writer


class _StorageStack(threading.local):
    def __init__(self) -> None:
        self.storages: list[EventStorage] = []


_STACK = _StorageStack()


class NoEventStorageError(RuntimeError, AssertionError):
    """No storage is open here. (An AssertionError too: code for detectron2 may catch that.)"""


def get_event_storage() -> "EventStorage":
    """The storage of the innermost `with EventStorage(...)` that this thread is in."""
    if not _STACK.storages:
        raise NoEventStorageError(
            "get_event_storage() was called outside of a `with EventStorage(start_iter) as "
            "storage:` block. A trainer opens one for its run; open one around your own loop, "
            "or ask has_event_storage() first. Each thread has its own: enter the same storage "
            "with `with storage:` in a thread that shall use it."
        )
    return _STACK.storages[-1]


def has_event_storage() -> bool:
    """Whether `get_event_storage()` would find a storage."""
    return bool(_STACK.storages)


@dataclass
class _Cursor:
    """How far one writer has read."""

    scalars: dict[str, int] = field(default_factory=dict)
    images: int = 0
    histograms: int = 0


class EventStorage:
    """Scalars with their recent history, images, histograms and ad-hoc state of one run.

    Models, hooks and writers reach it with `get_event_storage()`::

        with EventStorage() as storage:
            for storage.iter in range(100):
                storage.put_scalar("loss", loss)  # a number, or a tensor on any device

    Any other attribute is ad-hoc state: `storage.early_stop = True` ends a trainer's run, and
    plain values (numbers, strings, lists, dicts) are saved with the checkpoint.

    `log_period` is how many iterations a value is smoothed over unless a writer says otherwise.
    """

    def __init__(self, start_iter: int = 0, log_period: int = 20) -> None:
        self._iter = start_iter
        self._log_period = log_period
        self.early_stop = False  # set it to end the run after the current step
        self._prefix = ""
        self._scalars: dict[str, tuple[HistoryBuffer, list, list[int], bool]] = {}
        self._puts = self._deferred = 0
        self._smoothed: tuple[int, int, dict[str, tuple[float, int]]] = (0, 0, {})
        self._converted_callbacks: list[Callable[[list[tuple[str, float, int]]], None]] = []
        self._listeners: dict[str, Callable[..., None]] = {}
        self._images: deque[tuple[str, torch.Tensor, int]] = deque(maxlen=MAX_MEDIA)
        self._samples: deque[tuple[str, torch.Tensor, int, int]] = deque(maxlen=MAX_MEDIA)
        self._images_put = self._samples_put = 0
        self._cursors: WeakKeyDictionary[object, _Cursor] = WeakKeyDictionary()
        self._saved_cursors: dict[str, dict[str, int]] = {}

    # --- what models and hooks put in -------------------------------------------------------

    def put_scalar(
        self,
        name: str,
        value: float | torch.Tensor | np.number,
        smoothing_hint: bool = True,
        cur_iter: int | None = None,
    ) -> None:
        """Record the value that `value` has at this moment.

        A tensor on an accelerator is fetched when a writer is due, with all others at once.
        `smoothing_hint` says whether writers should show a median over their window (a noisy
        loss) or the value itself (an accuracy); it belongs to the name and cannot change.
        """
        if self._prefix:
            name = self._prefix + name
        if type(value) is not float:
            value = as_scalar(name, value)
        try:
            history, values, iterations, hint = self._scalars[name]
        except KeyError:
            history, values, iterations, hint = self._add_scalar(name, bool(smoothing_hint))
        if hint is not smoothing_hint and hint != smoothing_hint:
            raise ValueError(
                f"metric {name!r} was put with smoothing_hint={hint} before and with "
                f"{smoothing_hint} now; use one of them everywhere, or another name"
            )
        if type(value) is not float:
            self._defer(history)
        # Written out here, not in a method of the history: a call would cost as much again.
        values.append(value)
        iterations.append(self._iter if cur_iter is None else cur_iter)
        self._puts += 1
        if len(values) > history.limit:
            history.trim()

    def put_scalars(
        self,
        *,
        smoothing_hint: bool = True,
        cur_iter: int | None = None,
        **kwargs: float | torch.Tensor | np.number,
    ) -> None:
        """Record several scalars: `storage.put_scalars(loss=loss, accuracy=accuracy)`."""
        for name, value in kwargs.items():
            self.put_scalar(name, value, smoothing_hint=smoothing_hint, cur_iter=cur_iter)

    def put_image(self, img_name: str, img_tensor: torch.Tensor | np.ndarray) -> None:
        """Keep an image for the writers: CHW or HWC, uint8 or float in [0, 1] or [0, 255]."""
        name = self._prefix + img_name
        _put_media(self._images, (name, as_image(name, img_tensor), self._iter))
        self._images_put += 1

    def put_histogram(
        self, hist_name: str, hist_tensor: torch.Tensor | np.ndarray, bins: int = 1000
    ) -> None:
        """Keep the distribution of a tensor's values for the writers."""
        name = self._prefix + hist_name
        _put_media(self._samples, (name, as_samples(name, hist_tensor), bins, self._iter))
        self._samples_put += 1

    @contextmanager
    def name_scope(self, name: str) -> Iterator[None]:
        """Put `name/` before the names of all that is put inside; scopes nest."""
        outer = self._prefix
        self._prefix = f"{outer}{name.rstrip('/')}/"
        try:
            yield
        finally:
            self._prefix = outer

    # --- the clock --------------------------------------------------------------------------

    @property
    def iter(self) -> int:
        """The current iteration. A trainer sets it; in your own loop set it or call `step()`."""
        return self._iter

    @iter.setter
    def iter(self, value: int) -> None:
        self._iter = int(value)

    @property
    def iteration(self) -> int:
        """The same as `iter`."""
        return self._iter

    def step(self) -> None:
        """Go to the next iteration (only in a loop of your own: a trainer does it itself)."""
        self._iter += 1

    # --- what writers and hooks take out ----------------------------------------------------

    def history(self, name: str) -> HistoryBuffer:
        """The history of a scalar; KeyError with the close names if it was never put."""
        self.sync()
        try:
            return self._scalars[name][0]
        except KeyError:
            hint = did_you_mean(name, self._scalars)
            raise KeyError(f"no metric {name!r} was put into this storage; {hint}") from None

    def histories(self) -> dict[str, HistoryBuffer]:
        """All histories by name."""
        self.sync()
        return {name: history for name, (history, *_) in self._scalars.items()}

    def latest(self) -> dict[str, tuple[float, int]]:
        """The latest value of each scalar, with its iteration."""
        self.sync()
        return {
            name: (history.latest(), history.latest_iteration)
            for name, (history, *_) in self._scalars.items()
        }

    def latest_with_smoothing_hint(
        self, window_size: int | None = None
    ) -> dict[str, tuple[float, int]]:
        """As `latest`, but a median over the last `window_size` iterations where hinted so."""
        window = window_size or self._log_period
        if self._smoothed[:2] != (self._puts, window):  # several writers ask after each other
            self.sync()
            latest = {
                name: (
                    history.smoothed(window) if hint else history.latest(),
                    history.iterations[-1],
                )
                for name, (history, *_, hint) in self._scalars.items()
            }
            self._smoothed = (self._puts, window, latest)
        return self._smoothed[2]

    def smoothing_hints(self) -> dict[str, bool]:
        """The smoothing hint of each scalar."""
        return {name: hint for name, (*_, hint) in self._scalars.items()}

    def count_samples(self, name: str, window_size: int | None = None) -> int:
        """How many values of a scalar came in the `window_size` iterations up to its latest."""
        history = self.history(name)
        return history.count_since(history.latest_iteration - (window_size or self._log_period))

    def unwritten(
        self, reader: object, window_size: int | None = None
    ) -> dict[int, dict[str, float]]:
        """The scalars put since `reader` last asked, smoothed where hinted: by iteration, name.

        Each reader has its own cursor, so a value put after a write is in the next one.
        """
        seen = self._cursor(reader).scalars
        records: dict[int, dict[str, float]] = {}
        for name, (value, iteration) in self.latest_with_smoothing_hint(window_size).items():
            count = self._scalars[name][0].count
            if seen.get(name) != count:
                seen[name] = count
                records.setdefault(iteration, {})[name] = value
        return dict(sorted(records.items()))

    def unwritten_images(self, reader: object) -> list[tuple[str, torch.Tensor, int]]:
        """Name, CHW uint8 image and iteration of the images put since `reader` last asked."""
        cursor = self._cursor(reader)
        new, cursor.images = self._images_put - cursor.images, self._images_put
        return [(name, as_uint8(image), at) for name, image, at in _last(self._images, new)]

    def unwritten_histograms(self, reader: object) -> list[dict]:
        """As arguments of `SummaryWriter.add_histogram_raw`, those since `reader` last asked."""
        cursor = self._cursor(reader)
        new, cursor.histograms = self._samples_put - cursor.histograms, self._samples_put
        return [summarize_histogram(*entry) for entry in _last(self._samples, new)]

    def clear_images(self) -> None:
        """Forget the images. `PeriodicWriter` does it when all its writers have had them."""
        self._images.clear()

    def clear_histograms(self) -> None:
        """Forget the histograms, as `clear_images` does the images."""
        self._samples.clear()

    def sync(self) -> None:
        """Turn all tensors that stayed on their devices into numbers, in one transfer a device."""
        if not self._deferred:
            return
        self._deferred = 0
        waiting = [
            (name, history, history.deferred_tensors())
            for name, (history, *_) in self._scalars.items()
        ]
        numbers = iter(fetch([tensor for *_, tensors in waiting for tensor in tensors]))
        converted = [
            (name, number, iteration)
            for name, history, tensors in waiting
            for number, iteration in history.resolve([next(numbers) for _ in tensors])
        ]
        for callback in self._converted_callbacks:
            callback(converted)

    def on_converted(self, callback: Callable[[list[tuple[str, float, int]]], None]) -> None:
        """Call back with (name, value, iteration) of the deferred scalars, once they are known."""
        self._converted_callbacks.append(callback)

    @contextmanager
    def listening(self, **callbacks: Callable[..., None]) -> Iterator[None]:
        """Have functions called inside when the events they are named for are emitted."""
        outer = self._listeners
        self._listeners = {**outer, **callbacks}
        try:
            yield
        finally:
            self._listeners = outer

    def emit(self, event: str, *args: Any) -> None:
        """Tell who listens that something happened, e.g. a step of an evaluation."""
        if event in self._listeners:
            self._listeners[event](*args)

    # --- state ------------------------------------------------------------------------------

    def state_dict(self) -> dict:
        """Ad-hoc state of plain values, recent histories, and how far each writer has read."""
        self.sync()
        return {
            "notes": {
                name: value
                for name, value in vars(self).items()
                if not name.startswith("_") and name != "early_stop" and _is_plain(value)
            },
            "scalars": {
                name: {"smoothing_hint": hint, **history.state_dict()}
                for name, (history, *_, hint) in self._scalars.items()
            },
            "cursors": {
                name: dict(cursor.scalars)
                for name, cursor in zip(
                    unique_names(self._cursors), self._cursors.values(), strict=True
                )
            },
        }

    def load_state_dict(self, state: dict) -> None:
        vars(self).update(state["notes"])
        for name, saved in state["scalars"].items():
            self._add_scalar(name, saved["smoothing_hint"])[0].load_state_dict(saved)
        self._saved_cursors = dict(state["cursors"])

    def __enter__(self) -> "EventStorage":
        _STACK.storages.append(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _STACK.storages.remove(self)

    def __getattr__(self, name: str) -> Any:
        known = [*vars(self), *dir(type(self))]
        hint = did_you_mean(name, [one for one in known if not one.startswith("_")])
        raise AttributeError(f"storage.{name} was never set{'; ' if hint else ''}{hint}")

    # detectron2's names for what writers of its users read
    @property
    def _vis_data(self) -> list[tuple[str, torch.Tensor, int]]:
        return list(self._images)

    @property
    def _histograms(self) -> list[dict]:
        return [summarize_histogram(*entry) for entry in self._samples]

    def _add_scalar(
        self, name: str, smoothing_hint: bool
    ) -> tuple[HistoryBuffer, list, list[int], bool]:
        history = HistoryBuffer(KEPT_VALUES)
        entry = (history, history.raw_values, history.iterations, smoothing_hint)
        self._scalars[name] = entry
        return entry

    def _defer(self, history: HistoryBuffer) -> None:
        if self._deferred >= MAX_DEFERRED:
            self.sync()
        history.deferred.append(history.count)
        self._deferred += 1

    def _cursor(self, reader: object) -> _Cursor:
        if reader not in self._cursors:
            self._cursors[reader] = _Cursor()
            name = unique_names(self._cursors)[-1]
            self._cursors[reader].scalars.update(self._saved_cursors.get(name, {}))
        return self._cursors[reader]


def _put_media(entries: deque, entry: tuple) -> None:
    if len(entries) == MAX_MEDIA:
        log_first_n(
            logging.WARNING,
            f"more than {MAX_MEDIA} images or histograms wait for a writer: the oldest are "
            "dropped; write more often, or put fewer",
            name=__name__,
        )
    entries.append(entry)


def _last(entries: deque, count: int) -> list:
    return list(entries)[-count:] if count else []


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, (str, int)) and _is_plain(one) for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)
