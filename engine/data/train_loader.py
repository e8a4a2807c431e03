"""The training loader: endless, exact under any number of workers and ranks, starting anywhere."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import count, islice
from typing import Any

from torch.utils.data import DataLoader, Sampler

from engine.data.dataset import MapDataset
from engine.data.samplers import rank_and_world_size
from engine.data.seeds import derive_seed
from engine.data.workers import hand_out

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
        passes = repeat_passes(self._loader, self.dataset, "data set", "full batch")
        return islice(passes, iteration, None)

    def _hand_out(self, batches: Iterator[Any], iteration: int) -> Iterator[Any]:
        can_jump = isinstance(self._loader.batch_sampler, GlobalBatches)
        can_jump &= not self._loader.persistent_workers  # torch would go on with the dead ones
        reopen = self._open if can_jump else None
        for batch in hand_out(batches, self._loader, iteration, reopen):
            iteration += 1
            self._next = iteration
            yield batch


class GlobalBatches(Sampler[list[tuple[int, int]]]):
    """This rank's part of each global batch as pairs (index, seed of the sample), endlessly."""

    def __init__(self, sampler: Iterable[int], batch_size: int) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.start = 0
        self.seed = 0

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        rank, world_size = rank_and_world_size(self.sampler)
        if _can_jump(self.sampler):
            indices = self.sampler.iter_from(self.start)  # type: ignore[attr-defined]
        else:
            passes = repeat_passes(self.sampler, self.sampler, "sampler", "index")
            indices = islice(passes, self.start // world_size, None)
        seed, places = self.seed, count(self.start + rank, world_size)
        pairs = (
            (index, derive_seed(seed, place)) for index, place in zip(indices, places, strict=False)
        )
        return iter(lambda: list(islice(pairs, self.batch_size)), [])


def _can_jump(sampler: Iterable[int]) -> bool:
    """Whether it has an `iter_from` that gives what its `__iter__` does: a subclass may have
    changed the latter alone."""
    for kind in type(sampler).__mro__:
        if "iter_from" in vars(kind) or "__iter__" in vars(kind):
            return "iter_from" in vars(kind)
    return False


def repeat_passes(source: Iterable[Any], owner: Any, kind: str, item_kind: str) -> Iterator[Any]:
    """All of `source`, from the start again whenever it ends; `owner` is told the epoch."""
    for epoch in count():
        if set_epoch := getattr(owner, "set_epoch", None):
            set_epoch(epoch)
        empty = True
        for item in source:
            empty = False
            yield item
        if empty:
            name = f"{kind} ({type(owner).__name__})"
            raise ValueError(f"a whole pass over the {name} gave not one {item_kind}")
