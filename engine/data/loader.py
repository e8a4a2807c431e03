"""Loaders: batches of a fixed total size over all ranks, from any iteration on.

What a loader gives follows from its seed and the iteration alone. Global batch i holds the samples
at places i × B up to (i + 1) × B of the sampler's stream, B being the total batch size, and a
mapper's `generator`, or the `sample_generator()` of a data set, is seeded from the sample's place.
Workers and ranks change who loads a sample, not what it looks like.

Code that draws from the global generators of `random`, `numpy` or `torch` gets less: each worker's
generators are seeded from the loader's seed, the iteration it starts at, the rank and the worker,
so a run repeats only with the same ranks and workers, from the same start. Without workers it
shares the main process' generators with the model. `seed_global_rngs=True` seeds all three from the
place before each sample and restores them after it: as exact as `generator`, but 0.2 ms a sample.
"""

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, default_collate

from engine.data.dataset import DatasetFromList, MapDataset
from engine.data.samplers import InferenceSampler, TrainingSampler, rank_and_world_size
from engine.data.seeds import agree_on_seed, derive_seed
from engine.data.train_loader import GlobalBatches, TrainLoader
from engine.data.workers import SampleReader, hand_out, start_worker
from engine.parallel.comm import get_rank
from engine.utils.registry import Registry

logger = logging.getLogger(__name__)

TRAIN_LOADER_REGISTRY = Registry("TRAIN_LOADER")
"""Functions that build a training loader, for a config to choose from by name."""

Collate = Callable[[list[Any]], Any]


def build_batch_data_loader(
    dataset: Any,
    sampler: Iterable[int] | None,
    total_batch_size: int | None,
    *,
    aspect_ratio_grouping: bool = False,
    num_workers: int = 0,
    collate_fn: Collate | None = None,
    drop_last: bool = True,
    single_gpu_batch_size: int | None = None,
    prefetch_factor: int = 2,
    persistent_workers: bool = False,
    pin_memory: bool = False,
    seed: int | None = None,
    num_folds: int = 1,
    seed_global_rngs: bool = False,
    worker_init_fn: Callable[[int], None] | None = None,
    **kwargs: Any,
) -> TrainLoader | DataLoader[Any]:
    """An endless training loader with `total_batch_size` samples an iteration over all ranks; with
    an `InferenceSampler` one that reads each sample once, as `build_test_loader` makes it.

    `single_gpu_batch_size` gives the size for one rank instead; leave `total_batch_size` None then.
    `seed` is that of augmentation: the sampler's own, unless given. An epoch is `num_folds` passes
    over the data, counted in whole batches: rounded down, or up without `drop_last`. A sampler that
    ends is started again. An iterable data set, whose sampler must be None, is read again when it
    ends. Where the one or the other has `set_epoch`, it is called before each pass. `collate_fn`
    makes a batch of a list of samples; torch's default stacks the values of dicts. Further
    arguments go to torch's `DataLoader`.
    """
    if aspect_ratio_grouping:
        raise ValueError(
            "aspect_ratio_grouping is for detection and not supported here: leave it False"
        )
    _check_source(dataset, sampler)
    _, world_size = rank_and_world_size(sampler)
    batch_size = _batch_size_per_rank(total_batch_size, single_gpu_batch_size, world_size)
    options: dict[str, Any] = dict(
        num_workers=num_workers,
        pin_memory=pin_memory,
        prefetch_factor=prefetch_factor if num_workers else None,
        persistent_workers=persistent_workers and num_workers > 0,
        **kwargs,
    )
    if isinstance(sampler, InferenceSampler):
        return build_test_loader(
            dataset,
            sampler=sampler,
            batch_size=batch_size,
            drop_last=drop_last,
            collate_fn=collate_fn,
            worker_init_fn=worker_init_fn,
            **options,
        )
    options |= {
        "collate_fn": collate_fn or stack_samples,
        "generator": torch.Generator(),
        "worker_init_fn": partial(start_worker, worker_init_fn),
    }
    if sampler is not None and 0 < len(dataset) < batch_size * world_size:
        logger.warning(
            "The data set has %d samples, and a batch %d: it has some of them several times",
            len(dataset),
            batch_size * world_size,
        )
    if sampler is None:
        loader = DataLoader(dataset, batch_size=batch_size, drop_last=drop_last, **options)
    else:
        reader = SampleReader(dataset, num_workers, seed_global_rngs)
        loader = DataLoader(reader, batch_sampler=GlobalBatches(sampler, batch_size), **options)
    return TrainLoader(
        loader,
        dataset=dataset,
        sampler=sampler,
        total_batch_size=batch_size * world_size,
        epoch_length=_epoch_length(sampler, num_folds, batch_size * world_size, drop_last),
        seed=_augmentation_seed(seed, sampler),
    )


@TRAIN_LOADER_REGISTRY.register()
def build_train_loader(
    dataset: Any,
    *,
    total_batch_size: int | None = None,
    mapper: Callable[..., Any] | None = None,
    sampler: Iterable[int] | None = None,
    seed: int | None = None,
    **kwargs: Any,
) -> TrainLoader:
    """An endless training loader over a list or data set, its samples passed through `mapper`.

    The samples come shuffled unless a sampler says otherwise. A mapper with a parameter of the
    name `generator` gets one to draw from (see `MapDataset`). Further arguments are those of
    `build_batch_data_loader`. A stream (IterableDataset) sees to it itself that each rank and each
    worker gets other samples.
    """
    dataset = _as_dataset(dataset)
    if sampler is None and not isinstance(dataset, IterableDataset):
        sampler = TrainingSampler(_size(dataset), seed=seed)
    seed = _augmentation_seed(seed, sampler)
    if mapper is not None:
        dataset = MapDataset(dataset, mapper, seed=seed)
    loader = build_batch_data_loader(dataset, sampler, total_batch_size, seed=seed, **kwargs)
    return cast(TrainLoader, loader)


def build_test_loader(
    dataset: Any,
    *,
    mapper: Callable[..., Any] | None = None,
    sampler: Sampler[int] | None = None,
    batch_size: int = 1,
    num_workers: int = 0,
    collate_fn: Collate | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
    **kwargs: Any,
) -> DataLoader[Any]:
    """A loader that reads each sample once, over all ranks; `batch_size` is that of one rank.

    A mapper's `generator` is seeded from the sample's index: every evaluation sees the same. A
    stream (IterableDataset) is read whole by each rank and worker unless it shards itself.
    """
    dataset = _as_dataset(dataset)
    if mapper is not None:
        dataset = MapDataset(dataset, mapper)
    if not isinstance(dataset, IterableDataset):
        sampler = sampler or InferenceSampler(_size(dataset))
        dataset = SampleReader(dataset, num_workers)
    return _TestLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=num_workers,
        collate_fn=collate_fn or stack_samples,
        # An evaluation must not advance torch's global generator, which making an iterator does.
        generator=torch.Generator().manual_seed(derive_seed(0, get_rank())),
        worker_init_fn=partial(start_worker, worker_init_fn),
        **kwargs,
    )


class _TestLoader(DataLoader[Any]):
    def __init__(self, dataset: Any, **options: Any) -> None:
        super().__init__(dataset, **options)
        self._options = options

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # A sampler of a user's own may give another order each time.
        can_jump = isinstance(self.sampler, InferenceSampler) and not self.persistent_workers
        return hand_out(super().__iter__(), self, reopen=self._open if can_jump else None)

    def _open(self, batch: int) -> Iterator[Any]:
        left = list(self.sampler)[batch * self._options["batch_size"] :]
        return iter(DataLoader(self.dataset, **{**self._options, "sampler": left}))


def stack_samples(batch: list[Any]) -> Any:
    """torch's `default_collate`, which stacks the values of dicts, with an error that helps."""
    try:
        return default_collate(batch)
    except (RuntimeError, TypeError) as error:
        raise type(error)(
            f"the samples of a batch cannot be stacked: {error}\nMap them to one shape, or give a "
            "function that makes a batch (collate_fn; DATALOADER.COLLATE of a config, "
            "engine.data:trivial_batch_collator leaves the list)"
        ) from None


def trivial_batch_collator(batch: list[Any]) -> list[Any]:
    """Leave a batch the list of samples that it is."""
    return batch


def worker_init_reset_seed(worker_id: int) -> None:
    """Seed a worker's `random`, NumPy and torch from the seed that torch gave the worker.

    For the `worker_init_fn` of a loader made elsewhere; torch does as much in the loaders above.
    """
    seed = torch.initial_seed()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


def _as_dataset(dataset: Any) -> Any:
    return DatasetFromList(dataset) if isinstance(dataset, (list, tuple)) else dataset


def _size(dataset: Any) -> int:
    if len(dataset) == 0:
        raise ValueError(f"the data set is empty ({type(dataset).__name__} of length 0)")
    return len(dataset)


def _check_source(dataset: Any, sampler: Iterable[int] | None) -> None:
    name = type(dataset).__name__
    if not isinstance(dataset, IterableDataset):
        _size(dataset)
        if sampler is None:
            raise ValueError(f"{name} needs a sampler, for example TrainingSampler(len(dataset))")
    elif sampler is not None:
        raise ValueError(f"{name} is iterable and chooses its samples itself: sampler must be None")


def _batch_size_per_rank(total: int | None, single: int | None, world_size: int) -> int:
    if (total is None) == (single is None):
        raise ValueError(
            "give one of total_batch_size (over all ranks) and single_gpu_batch_size, "
            f"got {total} and {single}"
        )
    size = single if total is None else total
    if size is None or size < 1:
        raise ValueError(f"a batch has 1 sample or more, got a batch size of {size}")
    if total is None:
        return size
    if total % world_size:
        raise ValueError(
            f"total_batch_size (SOLVER.IMS_PER_BATCH) {total} cannot be split evenly over "
            f"{world_size} ranks; the next one that can is {total + -total % world_size}"
        )
    return total // world_size


def _augmentation_seed(seed: int | None, sampler: Any) -> int:
    if seed is None or seed < 0:
        seed = getattr(sampler, "seed", None)
    return agree_on_seed(seed)


def _epoch_length(sampler: Any, num_folds: int, batch_size: int, drop_last: bool) -> int | None:
    if num_folds < 1:
        raise ValueError(f"an epoch is 1 pass over the data or more, got num_folds {num_folds}")
    samples = getattr(sampler, "epoch_size", None)
    if samples is None:
        if not hasattr(sampler, "__len__"):
            return None
        samples = len(sampler) * rank_and_world_size(sampler)[1]
    samples *= num_folds
    return max(1, samples // batch_size if drop_last else -(-samples // batch_size))
