"""Samples read by worker processes, such that it is known at which one each of them is."""

import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.sharedctypes import RawArray
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader, Dataset, get_worker_info

from engine.data.dataset import describe_sample, read_sample
from engine.data.seeds import derive_seed, seeded_global_rngs
from engine.parallel.children import end_with_parent
from engine.utils.faults import report_faults_of_worker

logger = logging.getLogger(__name__)

_readers: weakref.WeakSet["SampleReader"] = weakref.WeakSet()


class LostWorkerError(RuntimeError):
    """A worker died or hangs; the message names what was being read."""


class SampleReader(Dataset[Any]):
    """Reads samples by (index, seed) or by index, and notes which one each worker is at."""

    def __init__(self, dataset: Any, num_workers: int, seed_global_rngs: bool = False) -> None:
        self.dataset = dataset
        self.seed_global_rngs = seed_global_rngs
        self._current: Any = RawArray("q", [-1] * max(1, num_workers))  # index, by worker
        self._pids: Any = RawArray("q", max(1, num_workers))
        _readers.add(self)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: int | tuple[int, int]) -> Any:
        index, seed = key if isinstance(key, tuple) else (key, derive_seed(0, key))
        worker = get_worker_info()
        slot = worker.id if worker else 0
        self._current[slot], self._pids[slot] = index, os.getpid()
        if self.seed_global_rngs:
            with seeded_global_rngs(seed):
                sample = read_sample(self.dataset, index, seed)
        else:
            sample = read_sample(self.dataset, index, seed)
        self._current[slot] = -1
        return sample

    def under_way(self) -> list[str]:
        """What is being read right now, and by whom."""
        return [
            f"{describe_sample(self.dataset, index)} (worker {slot}, pid {pid})"
            for slot, (index, pid) in enumerate(zip(self._current, self._pids, strict=True))
            if index >= 0
        ]


def under_way(loader: DataLoader[Any]) -> str:
    """Which samples a loader's workers are reading."""
    reader = loader.dataset
    if not isinstance(reader, SampleReader):
        return "samples that an iterable data set does not number"
    return ", ".join(reader.under_way()) or "no sample"


def hand_out(
    batches: Iterator[Any],
    loader: DataLoader[Any],
    first: int = 0,
    reopen: Callable[[int], Iterator[Any]] | None = None,
) -> Iterator[Any]:
    """The batches of an iterator of the loader; where a worker is lost, the error says at what.

    `first` is the number of the first one. Who ends a job with SIGTERM often ends its workers too,
    and its last steps still need data: `reopen` gives the batches from a number on.
    """
    if loader.num_workers:
        _name_samples_in_errors()
    number = first
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except Exception as error:
            samples, is_ended = under_way(loader), _has_ended_worker(batches)
            _end_workers(batches, loader)
            if is_ended and reopen is not None:
                logger.warning("SIGTERM has ended workers; new ones go on at batch %d", number)
                batches = reopen(number)
                continue
            if isinstance(error.__cause__, LostWorkerError):  # torch's own is about that one
                raise error.__cause__ from None
            # "Caught" is how torch passes on what was raised in a worker: that one is alive.
            is_lost = isinstance(error, (RuntimeError, OSError, EOFError))
            is_lost &= not isinstance(error, LostWorkerError)
            if not is_lost or not loader.num_workers or str(error).startswith("Caught "):
                raise
            raise LostWorkerError(
                f"a worker was lost or is stuck at batch {number}, reading {samples}\n"
                f"{type(error).__name__}: {error}"
            ) from error
        number += 1
        yield batch


def start_worker(then: Callable[[int], None] | None, worker_id: int) -> None:
    """What a worker does first: `worker_init_fn=partial(start_worker, your_own)`."""
    report_faults_of_worker()
    end_with_parent()  # torch's looks for it only where it waits for something to read
    for name in ("SIGINT", "SIGUSR1"):  # Ctrl-C and Slurm reach it too; the main process decides
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if then is not None:
        then(worker_id)


def _has_ended_worker(batches: Iterator[Any]) -> bool:
    """Whether a worker was ended by SIGTERM."""
    workers = getattr(batches, "_workers", ())
    return any(worker.exitcode == -signal.SIGTERM for worker in workers)


def _end_workers(batches: Iterator[Any], loader: DataLoader[Any]) -> None:
    # The error's traceback keeps them alive; left to the garbage collector, each takes seconds.
    shutdown = getattr(batches, "_shutdown_workers", None)
    if shutdown and not loader.persistent_workers:
        with suppress(RuntimeError):  # torch may report a dead worker once more meanwhile
            shutdown()


def _name_samples_in_errors() -> None:
    """Torch raises a worker's death wherever the main thread is: have it say what was read."""
    if threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
    if callable(handler) and getattr(handler, "func", None) is not _on_child:
        signal.signal(signal.SIGCHLD, partial(_on_child, handler))


def _on_child(
    inner: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None
) -> None:
    try:
        inner(number, frame)
    except RuntimeError as error:
        if "Terminated" in str(error):
            return  # Who ends a whole job ends workers too; the run may need no more data.
        samples = [sample for reader in list(_readers) for sample in reader.under_way()]
        raise LostWorkerError(
            f"{str(error).strip()} Being read: {', '.join(samples) or 'no sample'}"
        ) from None
