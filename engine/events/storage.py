"""EventStorage: the shared memory of a run. What is measured goes in, what is written comes out."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from engine.events.current import close_storage, open_storage
from engine.events.histories import Histories
from engine.events.history import HistoryBuffer
from engine.events.media import (
    MediaQueue,
    as_image,
    as_samples,
    as_uint8,
    summarize_histogram,
)
from engine.events.notes import NeverSetError, plain_notes
from engine.events.over_ranks import OverRanks
from engine.events.readings import Cursor, Readings
from engine.events.scalar_log import ScalarLog
from engine.utils.suggest import hint_at
from engine.utils.unique_names import unique_names

MANY_TOGETHER = 10  # scalars; fewer are put quicker one by one


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
        catch_up = _weak_sync(self)
        self._log = ScalarLog(start_iter, catch_up)
        self._histories = Histories(catch_up)
        if type(self).put_scalar is _put_scalar:
            # Quicker by a fifth: where a class has a __getattr__, finding a method is slow.
            self.put_scalar = self._log.put  # type: ignore[method-assign]
        self._smoothing_window = log_period
        self.early_stop = False  # set it to end the run after the current step
        self._sync_callbacks: list[Callable[[], None]] = []
        self._listeners: dict[str, Callable[..., None]] = {}
        self._images = MediaQueue("images")
        self._samples = MediaQueue("histograms")
        self._cursors: MutableMapping[object, Cursor] = WeakIdKeyDictionary()  # of readers
        self._saved_cursors: dict[str, dict[str, int]] = {}
        self._over_ranks: OverRanks | None = None

    # --- what models and hooks put in -------------------------------------------------------

    def put_scalar(
        self,
        name: str,
        value: float | torch.Tensor | np.number,
        smoothing_hint: bool = True,
        cur_iter: int | None = None,
    ) -> float | torch.Tensor:
        """Record the value that `value` has at this moment, and return it as it is kept.

        A tensor on an accelerator is fetched when a writer is due, with all others at once.
        `smoothing_hint` says whether writers should show a median over their window (a noisy
        loss) or the value itself (an accuracy); it belongs to the name and cannot change.
        """
        return self._log.put(name, value, smoothing_hint, cur_iter)

    def put_scalars(
        self,
        scalars: Mapping[str, float | torch.Tensor | np.number] | None = None,
        /,
        *,
        smoothing_hint: bool = True,
        cur_iter: int | None = None,
        **kwargs: float | torch.Tensor | np.number,
    ) -> None:
        """Record several scalars: `storage.put_scalars(loss=loss, accuracy=accuracy)`.

        Of many, `storage.put_scalars(metrics)` with a dict is the quickest.
        """
        log, put = self._log, self.put_scalar
        for several in (scalars, kwargs):
            if not several:
                continue
            are_many = len(several) >= MANY_TOGETHER and cur_iter in (None, log.iteration)
            is_ours = put == log.put  # and not one of a subclass, or patched in
            if not (are_many and is_ours and log.put_together(several, smoothing_hint)):
                for name, value in several.items():
                    put(name, value, smoothing_hint, cur_iter)

    def put_numbers(self, numbers: dict[str, float | torch.Tensor], iteration: int) -> None:
        """`put_scalar`, in one call, for numbers as it returns them: the metrics of a step."""
        log, iteration = self._log, int(iteration)
        are_many = len(numbers) >= MANY_TOGETHER and iteration == log.iteration
        if not (are_many and log.put_together(numbers, True)):
            log.put_numbers(numbers, iteration)

    def put_image(self, img_name: str, img_tensor: torch.Tensor | np.ndarray) -> None:
        """Keep an image for the writers: CHW or HWC, uint8 or float in [0, 1] or [0, 255]."""
        name = self._log.prefix + img_name
        iteration = self._log.iteration
        self._images.put((name, as_image(name, img_tensor), iteration), iteration)

    def put_histogram(
        self, hist_name: str, hist_tensor: torch.Tensor | np.ndarray, bins: int = 1000
    ) -> None:
        """Keep the distribution of a tensor's values for the writers."""
        name = self._log.prefix + hist_name
        if bins < 1:
            raise ValueError(f"histogram {name!r} needs at least one bin, got {bins}")
        iteration = self._log.iteration
        self._samples.put((name, as_samples(name, hist_tensor), bins, iteration), iteration)

    @contextmanager
    def name_scope(self, name: str) -> Iterator[None]:
        """Put `name/` before the names of all that is put inside; scopes nest."""
        log = self._log
        outer = log.prefix
        log.open_scope(f"{outer}{name.rstrip('/')}/")
        try:
            yield
        finally:
            log.open_scope(outer)

    # --- the clock --------------------------------------------------------------------------

    @property
    def iter(self) -> int:
        """The current iteration. A trainer sets it; in your own loop set it or call `step()`."""
        return self._log.iteration

    @iter.setter
    def iter(self, value: int) -> None:
        self._log.go_to(value)

    @property
    def iteration(self) -> int:
        """The same as `iter`."""
        return self._log.iteration

    def step(self) -> None:
        """Go to the next iteration (only in a loop of your own: a trainer does it itself)."""
        self._log.go_to(self._log.iteration + 1)

    # --- what writers and hooks take out ----------------------------------------------------

    def history(self, name: str) -> HistoryBuffer:
        """The history of a scalar; KeyError with the close names if it was never put."""
        self.sync()
        try:
            return self._histories[name]
        except KeyError:
            hint = hint_at(name, self._histories)
            raise KeyError(f"no metric {name!r} was put into this storage{hint}") from None

    def histories(self) -> dict[str, HistoryBuffer]:
        """All histories by name."""
        self.sync()
        return dict(self._histories)

    def latest(self) -> dict[str, tuple[float, int]]:
        """The latest value of each scalar, with its iteration."""
        return {
            name: (history.latest(), history.latest_iteration)
            for name, history in self.histories().items()
        }

    def latest_with_smoothing_hint(
        self, window_size: int | None = None
    ) -> dict[str, tuple[float, int]]:
        """As `latest`, but a median over the last `window_size` iterations where hinted so."""
        readings = self.readings(window_size)
        return {name: (value, iteration) for name, (value, iteration, _) in readings.items()}

    def readings(self, window_size: int | None = None) -> Readings:
        """As `latest_with_smoothing_hint`, with how many values there have been of each."""
        self.sync()
        with self._histories.lock:
            return self._histories.readings(window_size or self.smoothing_window, self._log.hints)

    @property
    def smoothing_window(self) -> int:
        """How many iterations a value is smoothed over unless a writer says otherwise."""
        return self._smoothing_window

    def smoothing_hints(self) -> dict[str, bool]:
        """The smoothing hint of each scalar."""
        return dict(self._log.hints)

    def count_samples(self, name: str, window_size: int | None = None) -> int:
        """How many values of a scalar came in the `window_size` iterations up to its latest."""
        return len(self.recent(name, window_size))

    def recent(self, name: str, window_size: int | None = None) -> list[float]:
        """The values of a scalar in the `window_size` iterations up to its latest."""
        self.sync()
        window = window_size or self.smoothing_window
        values = self._histories.recent(name, window)
        return self.history(name).recent(window) if values is None else values

    def unwritten(
        self, reader: object, window_size: int | None = None
    ) -> dict[int, dict[str, float]]:
        """The scalars put since `reader` last asked, smoothed where hinted: by iteration, name.

        Each reader has its own cursor, so a value put after a write is in the next one.
        """
        readings = self.readings(window_size)
        news = readings.since(self._cursor(reader))
        self._cursors[reader] = readings.version
        return news

    def expect_reader(self, reader: object) -> None:
        """Give `reader` its cursor now. Checkpoints number those of one class as they come, and who
        reads first may be another one in the run that goes on."""
        self._cursor(reader)

    def forget_written(self, iteration: int, readers: Iterable[object]) -> bool:
        """Have scalars whose latest value is of `iteration` or later be unwritten for readers.

        Returns whether there are any.
        """
        late = [name for name, (_, at) in self.latest().items() if at >= iteration]
        readings = self.readings()
        for reader in readers:
            counts = readings.counts(self._cursor(reader))
            self._cursors[reader] = {name: counts[name] for name in counts.keys() - late}
        return bool(late)

    def unwritten_images(self, reader: object) -> list[tuple[str, torch.Tensor, int]]:
        """Name, CHW uint8 image and iteration of the images put since `reader` last asked."""
        return [
            (name, as_uint8(image), at) for name, image, at in self._images.take(reader, self.iter)
        ]

    def unwritten_histograms(self, reader: object) -> list[dict]:
        """As arguments of `SummaryWriter.add_histogram_raw`, those since `reader` last asked."""
        return [summarize_histogram(*entry) for entry in self._samples.take(reader, self.iter)]

    def expect_media_reader(self, reader: object) -> None:
        """Keep images and histograms until `reader` has had them, though it has not asked yet."""
        self._images.expect(reader)
        self._samples.expect(reader)

    def drop_read_media(self, reader: object) -> None:
        """`reader` has had all images and histograms: forget those that all who take some had."""
        self._images.drop_read(reader)
        self._samples.drop_read(reader)

    def clear_images(self) -> None:
        """Forget the images, whoever has had them."""
        self._images.clear()

    def clear_histograms(self) -> None:
        """Forget the histograms, whoever has had them."""
        self._samples.clear()

    def sync(self) -> None:
        """Sort what was put into the histories; tensors become numbers in one transfer a device."""
        if not (self._log.has_news or self._sync_callbacks):
            return
        with self._histories.lock:
            names, values = self._log.take()
            if names:  # or another thread was quicker
                if self._over_ranks is not None:
                    self._over_ranks.note(names, values)
                self._histories.add(names, values)
        for callback in self._sync_callbacks:
            callback()

    def start_joining_ranks(self, window_size: int | None = None) -> None:
        """Have `join_ranks` bring in what other ranks put. All ranks call it, with the number of
        iterations that readings are smoothed over at most."""
        window = max(window_size or 0, self.smoothing_window)
        if self._over_ranks is None:
            self._over_ranks = OverRanks(window)
        else:
            self._over_ranks.widen(window)

    def stop_joining_ranks(self) -> None:
        """Wait until rank 0 has what this one has sent; then `join_ranks` does nothing again."""
        if self._over_ranks is not None:
            self._over_ranks.finish()
            self._over_ranks = None

    def join_ranks(self) -> None:
        """Have rank 0's scalars since the last call be those of all ranks, as `OverRanks` says.

        Other ranks keep theirs. All call it in the same iteration; where joining was not started,
        as with a single process, it does nothing.
        """
        if self._over_ranks is None:
            return
        self.sync()
        joint = self._over_ranks.join(
            self._log.hints, self._log.iteration, self._histories.overwrite_last
        )
        for name, replaced, column in joint:
            self._log.take_hint(name, self._over_ranks.hints[name])
            self._histories.replace_last(name, replaced, column)

    def on_sync(self, callback: Callable[[], None]) -> None:
        """Call back at each `sync`, when devices are waited for anyway."""
        self._sync_callbacks.append(callback)

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
        notes = plain_notes(vars(self))
        notes.pop("early_stop", None)  # it ended this run, not the one that goes on from here
        readings, names = self.readings(), unique_names(self._cursors)
        # A writer that has not written since the run was resumed has its old cursor.
        cursors = {**self._saved_cursors, **dict(zip(names, self._cursors.values(), strict=True))}
        return {
            "notes": notes,
            "scalars": {
                name: {"smoothing_hint": self._log.hints[name], **history.state_dict()}
                for name, history in self.histories().items()
            },
            "cursors": {name: readings.counts(cursor) for name, cursor in cursors.items()},
        }

    def load_state_dict(self, state: dict) -> None:
        self.sync()
        vars(self).update(state["notes"])
        for name, saved in state["scalars"].items():
            self._log.take_hint(name, saved["smoothing_hint"])
            self._histories.load(name, saved)
        self._saved_cursors = dict(state["cursors"])

    def __getstate__(self) -> dict:
        return {"iter": self.iter, "window": self.smoothing_window, "state": self.state_dict()}

    def __setstate__(self, saved: dict) -> None:
        EventStorage.__init__(self, saved["iter"], saved["window"])
        self.load_state_dict(saved["state"])

    def __enter__(self) -> "EventStorage":
        open_storage(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._histories.sort_in_all()  # they may outlive this storage
        close_storage(self)

    def __getattr__(self, name: str) -> Any:
        raise NeverSetError(name=name, obj=self)

    # detectron2's names for what code of its users reads
    @property
    def _latest_scalars(self) -> dict[str, tuple[float, int]]:
        return self.latest()

    @property
    def _history(self) -> dict[str, HistoryBuffer]:
        return self.histories()

    @property
    def _smoothing_hints(self) -> dict[str, bool]:
        return self.smoothing_hints()

    @property
    def _vis_data(self) -> list[tuple[str, torch.Tensor, int]]:
        return [(name, as_uint8(image), at) for name, image, at in self._images.all(self.iter)]

    @property
    def _histograms(self) -> list[dict]:
        return [summarize_histogram(*entry) for entry in self._samples.all(self.iter)]

    def _cursor(self, reader: object) -> Cursor:
        if reader not in self._cursors:
            self._cursors[reader] = 0
            name = unique_names(self._cursors)[-1]
            self._cursors[reader] = self._saved_cursors.get(name, 0)
        return self._cursors[reader]


_put_scalar = EventStorage.put_scalar


def _weak_sync(storage: EventStorage) -> Callable[[], None]:
    """A function that has the storage sort in what waits; a strong reference would be a cycle."""
    reference = weakref.ref(storage)

    def sync() -> None:
        if (owner := reference()) is not None and owner._log.has_news:
            owner.sync()

    return sync
