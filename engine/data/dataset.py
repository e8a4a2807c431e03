"""Data sets made of others: from a list, with a mapper applied, as a stream."""

import copy
import inspect
import itertools
import pickle
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, get_worker_info

from engine.data.samplers import rank_and_world_size
from engine.data.seeds import derive_seed, sample_seed
from engine.parallel.comm import get_rank

MAX_TRIES = 1000


class SampleError(RuntimeError):
    """Reading or mapping a sample failed; the message names the sample's index and data set."""


def read_sample(dataset: Any, index: int, seed: int) -> Any:
    """`dataset[index]`, all mappers and `sample_generator` in it drawing from `seed`.

    An exception in it becomes a `SampleError` that names the sample.
    """
    token = sample_seed.set(seed)
    try:
        return dataset[index]
    except SampleError:
        raise
    except Exception as error:
        raise _sample_error(describe_sample(dataset, index), error) from error
    finally:
        sample_seed.reset(token)


def describe_sample(dataset: Any, index: int) -> str:
    """Which sample it is, of which data set in the catalog: "sample 5 of digits_train"."""
    while isinstance(dataset, MapDataset):
        dataset = dataset.dataset
    if name := getattr(dataset, "catalog_name", ""):
        return f"sample {index} of {name}"
    if isinstance(dataset, ConcatDataset) and 0 <= index < len(dataset):
        part = bisect_right(dataset.cumulative_sizes, index)
        before = dataset.cumulative_sizes[part - 1] if part else 0
        return describe_sample(dataset.datasets[part], index - before)
    return f"sample {index}"


class DatasetFromList(Dataset[Any]):
    """A list as a data set.

    With `serialize` the items are kept pickled in one block of memory, which forked workers share
    instead of copying object by object; each access gives a new object, so a mapper may change it.
    Without it, `copy` says whether an access gives a deep copy or the item itself.
    """

    def __init__(self, lst: Sequence[Any], copy: bool = True, serialize: bool = True) -> None:
        self.catalog_name = getattr(lst, "catalog_name", "")
        self.copy = copy
        self.serialize = serialize
        if serialize:
            pickled = [pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL) for item in lst]
            self._ends = torch.tensor([len(item) for item in pickled]).cumsum(0)
            self._bytes = torch.from_numpy(np.frombuffer(bytearray().join(pickled), np.uint8))
        else:
            self._items = lst

    def __len__(self) -> int:
        return len(self._ends if self.serialize else self._items)

    def __getitem__(self, index: int) -> Any:
        if not self.serialize:
            return copy.deepcopy(self._items[index]) if self.copy else self._items[index]
        index = range(len(self))[index]
        begin = self._ends[index - 1] if index else 0
        return pickle.loads(self._bytes[begin : self._ends[index]].numpy().data)


class MapDataset(Dataset[Any]):
    """A data set with a function, the mapper, applied to each sample as it is read.

    A mapper that has a parameter of the name `generator` gets a `torch.Generator`, seeded from the
    run's seed and the sample's place in the run: what it draws is the same under any number of
    workers and ranks, and after a resume. Where no loader is reading, `seed` and the index take
    their place. A mapper that returns None has another sample drawn in this one's stead.

    Over an iterable data set None skips the sample, and the generator is seeded from `seed`, the
    epoch, the rank, the worker and how many samples the worker has read.
    """

    def __new__(cls, dataset: Any = None, *args: Any, **kwargs: Any) -> "MapDataset":
        if isinstance(dataset, IterableDataset) and not issubclass(cls, IterableDataset):
            if cls is not MapDataset:
                raise TypeError(
                    f"{cls.__name__} reads samples by their index, and {type(dataset).__name__} is "
                    "a stream: use MapDataset itself, or a subclass of IterableDataset"
                )
            return super().__new__(_MapIterable)
        return super().__new__(cls)

    def __init__(self, dataset: Any, map_func: Callable[..., Any], *, seed: int = 0) -> None:
        self.dataset = dataset
        self.map_func = map_func
        self.seed = seed
        self._wants_generator = _has_generator(map_func)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "map_func": _as_picklable(self.map_func)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if isinstance(kept := state.get("map_func"), _ByValue):
            self.map_func = kept.function

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        outer = sample_seed.get()
        seed = derive_seed(self.seed if outer is None else outer, index)
        generator = torch.Generator().manual_seed(seed) if self._wants_generator else None
        mapped = self._map(index, seed, generator)
        if mapped is None:
            generator = generator or torch.Generator().manual_seed(seed)
            others = torch.randint(len(self), (MAX_TRIES,), generator=generator).tolist()
            candidates = (self._map(other, seed, generator) for other in others)
            mapped = next((sample for sample in candidates if sample is not None), None)
        if mapped is None:
            raise SampleError(
                f"{describe_sample(self, index)}: the mapper returned None for it and for "
                f"{MAX_TRIES} others drawn in its stead; a mapper returns None only for the odd "
                "sample that cannot be used"
            )
        return mapped

    def _map(self, index: int, seed: int, generator: torch.Generator | None) -> Any:
        token = sample_seed.set(seed)  # so that a mapper below this one draws other numbers
        try:
            sample = self.dataset[index]
        finally:
            sample_seed.reset(token)
        try:
            return self._apply(sample, generator)
        except Exception as error:
            raise _sample_error(describe_sample(self, index), error) from error

    def _apply(self, sample: Any, generator: torch.Generator | None) -> Any:
        if self._wants_generator:
            return self.map_func(sample, generator=generator)
        return self.map_func(sample)


class _MapIterable(MapDataset, IterableDataset[Any]):
    def __init__(self, dataset: Any, map_func: Callable[..., Any], *, seed: int = 0) -> None:
        super().__init__(dataset, map_func, seed=seed)
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()  # for persistent workers

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)
        if set_epoch := getattr(self.dataset, "set_epoch", None):
            set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        seed = self.seed
        for number in (int(self._epoch), get_rank(), worker.id if worker else 0):
            seed = derive_seed(seed, number)
        for count, sample in enumerate(self.dataset):
            try:
                generator = torch.Generator().manual_seed(derive_seed(seed, count))
                mapped = self._apply(sample, generator)
            except Exception as error:
                raise _sample_error(f"sample {count}", error) from error
            if mapped is not None:
                yield mapped


class ToIterableDataset(IterableDataset[Any]):
    """A data set read in the order of a sampler, as an iterable data set.

    With `shard_sampler` the workers of a loader take turns at the sampler's stream, in chunks of
    `shard_chunk_size`; without it each worker reads the whole stream, as a sampler that does the
    splitting itself needs it.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: Iterable[int],
        shard_sampler: bool = True,
        shard_chunk_size: int = 1,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise TypeError(f"{type(dataset).__name__} is an iterable data set already")
        self.dataset = dataset
        self.sampler = sampler
        self.shard_sampler = shard_sampler
        self.shard_chunk_size = shard_chunk_size

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info() if self.shard_sampler else None
        turn, turns = (worker.id, worker.num_workers) if worker else (0, 1)
        seed = getattr(self.sampler, "seed", 0)
        places = itertools.count(*rank_and_world_size(self.sampler))
        for count, (place, index) in enumerate(zip(places, self.sampler, strict=False)):
            if count // self.shard_chunk_size % turns == turn:
                yield read_sample(self.dataset, index, derive_seed(seed, place))


@dataclass(frozen=True)
class _ByValue:
    """A function that has no name to be pickled by; copies of a data set share it."""

    function: Callable[..., Any]

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return pickle.loads, (cloudpickle.dumps(self.function),)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_ByValue":
        return self


def _as_picklable(function: Callable[..., Any]) -> Any:
    named = function.func if isinstance(function, partial) else function
    named = named if hasattr(named, "__qualname__") else type(named)
    return _ByValue(function) if "<" in named.__qualname__ else function  # <lambda>, <locals>


def _has_generator(map_func: Callable[..., Any]) -> bool:
    try:
        return "generator" in inspect.signature(map_func).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False


def _sample_error(sample: str, error: Exception) -> SampleError:
    return SampleError(f"{sample}: {type(error).__name__}: {error}")
