"""The training loader: endless, exact under any number of workers and ranks, starting anywhere."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count, islice
from multiprocessing.sharedctypes import RawArray
from typing import Any

from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from engine.data.dataset import MapDataset, read_sample
from engine.data.samplers import rank_and_world_size
from engine.data.seeds import derive_seed, seeded_global_rngs

logger = logging.getLogger(__name__)


class TrainLoader:
    """An endless loader: this rank's part of each global batch, from a chosen iteration on.

    `iter(loader)` starts at global batch 0, or where `start_at` put it; iterating does not move
    that start. There is no `len()`; `epoch_length` is the number of batches in an epoch, or None
    where the sampler does not know it. Made by `build_batch_data_loader` and `build_train_loader`.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        dataset: Any,
        sampler: Iterable[int] | None,
        total_batch_size: int,
        epoch_length: int | None,
        seed: int,
    ) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self.total_batch_size = total_batch_size
        self.epoch_length = epoch_length
        self.seed = seed
        self._loader = loader
        self._start = 0
        self._next = 0

    def start_at(self, iteration: int) -> None:
        """Let the next `iter(loader)` begin with global batch `iteration`.

        Nothing before it is loaded, unless the data set is an iterable one, which cannot jump.
        """
        if iteration < 0:
            raise ValueError(f"an iteration is 0 or more, got {iteration}")
        self._start = self._next = iteration

    def state_dict(self) -> dict[str, Any]:
        """The seeds, and the iteration of the batch that comes next: ints, equal on all ranks."""
        state: dict[str, Any] = {"iteration": self._next, "seed": self.seed}
        if save := getattr(self.sampler, "state_dict", None):
            state["sampler"] = save()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seed = state["seed"]
        if isinstance(self.dataset, MapDataset):
            self.dataset.seed = self.seed
        load = getattr(self.sampler, "load_state_dict", None)
        if load and "sampler" in state:
            load(state["sampler"])
        self.start_at(state["iteration"])

    def samples_under_way(self) -> str:
        """Which samples the workers are reading: what to look at when one of them died or hangs.

        Torch raises a worker's death wherever the main thread is. Where that is in this loader, the
        error says this itself; elsewhere, whoever catches it can ask.
        """
        reader = self._loader.dataset
        return reader.under_way() if isinstance(reader, SampleReader) else "unknown"

    def __iter__(self) -> Iterator[Any]:
        return self._hand_out(self._open(self._start), self._start)

    def _open(self, iteration: int) -> Iterator[Any]:
        # Seeds workers. Without it, making an iterator would advance torch's global generator.
        rank, _ = rank_and_world_size(self.sampler)
        self._loader.generator.manual_seed(derive_seed(derive_seed(self.seed, iteration), rank))
        batches = self._loader.batch_sampler
        if isinstance(batches, GlobalBatches):
            batches.start = iteration * self.total_batch_size
            batches.seed = self.seed
            return iter(self._loader)
        if iteration:
            logger.warning(
                "%s is iterable and cannot jump: reading and dropping %d batches",
                type(self.dataset).__name__,
                iteration,
            )
        passes = repeat_passes(self._loader, self.dataset, "data set")
        return islice(passes, iteration, None)

    def _hand_out(self, batches: Iterator[Any], iteration: int) -> Iterator[Any]:
        while True:
            try:
                batch = next(batches)
            except Exception as error:
                samples = self.samples_under_way()
                self._end_workers(batches)
                # "Caught" is how torch passes on what was raised in a worker: that one is alive.
                lost = isinstance(error, (RuntimeError, OSError, EOFError))
                if not lost or not self._loader.num_workers or str(error).startswith("Caught "):
                    raise
                raise RuntimeError(
                    f"a worker was lost or stuck at batch {iteration}, samples being read: "
                    f"{samples}\n{type(error).__name__}: {error}"
                ) from error
            iteration += 1
            self._next = iteration
            yield batch

    def _end_workers(self, batches: Iterator[Any]) -> None:
        # The error's traceback keeps them alive; left to the garbage collector, each takes seconds.
        shutdown = getattr(batches, "_shutdown_workers", None)
        if shutdown and not self._loader.persistent_workers:
            with suppress(RuntimeError):  # torch may report a dead worker once more meanwhile
                shutdown()


class GlobalBatches(Sampler[list[tuple[int, int]]]):
    """This rank's part of each global batch as pairs (index, seed of the sample), endlessly."""

    def __init__(self, sampler: Iterable[int], batch_size: int) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.start = 0
        self.seed = 0

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        rank, world_size = rank_and_world_size(self.sampler)
        if iter_from := getattr(self.sampler, "iter_from", None):
            indices = iter_from(self.start)
        else:
            passes = repeat_passes(self.sampler, self.sampler, "sampler")
            indices = islice(passes, self.start // world_size, None)
        seed, places = self.seed, count(self.start + rank, world_size)
        pairs = (
            (index, derive_seed(seed, place)) for index, place in zip(indices, places, strict=False)
        )
        return iter(lambda: list(islice(pairs, self.batch_size)), [])


class SampleReader(Dataset[Any]):
    """Reads samples by (index, seed) or by index, and notes which one each worker is at."""

    def __init__(self, dataset: Any, num_workers: int, seed_global_rngs: bool = False) -> None:
        self.dataset = dataset
        self.seed_global_rngs = seed_global_rngs
        self._current: Any = RawArray("q", [-1] * num_workers) if num_workers else [-1]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: int | tuple[int, int]) -> Any:
        index, seed = key if isinstance(key, tuple) else (key, derive_seed(0, key))
        worker = get_worker_info()
        slot = worker.id if worker else 0
        self._current[slot] = index
        if self.seed_global_rngs:
            with seeded_global_rngs(seed):
                sample = read_sample(self.dataset, index, seed)
        else:
            sample = read_sample(self.dataset, index, seed)
        self._current[slot] = -1
        return sample

    def under_way(self) -> str:
        """Which worker is reading which sample right now."""
        busy = [
            f"{index} (worker {slot})" for slot, index in enumerate(self._current) if index >= 0
        ]
        return ", ".join(busy) or "none"


def repeat_passes(source: Iterable[Any], owner: Any, kind: str) -> Iterator[Any]:
    """All of `source`, from the start again whenever it ends; `owner` is told the epoch."""
    for epoch in count():
        if set_epoch := getattr(owner, "set_epoch", None):
            set_epoch(epoch)
        empty = True
        for item in source:
            empty = False
            yield item
        if empty:
            raise ValueError(f"the {kind} ({type(owner).__name__}) gave nothing in a whole pass")
