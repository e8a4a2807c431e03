"""Samplers: which sample stands at which place of the run.

A training sampler is one endless stream of indices, shared by all ranks. A *place* is a position
in that stream, counted from 0 over the whole run; the index there is a function of the seed and
the place alone. Rank r of n reads places r, r + n, r + 2n, … So global batch i, the places
i × B up to (i + 1) × B, holds the same samples under any number of ranks.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from engine.data.seeds import agree_on_seed, derive_seed
from engine.parallel.comm import get_rank, get_world_size
from engine.utils.registry import Registry

logger = logging.getLogger(__name__)

SAMPLER_REGISTRY = Registry("SAMPLER")


@SAMPLER_REGISTRY.register()
class TrainingSampler(Sampler[int]):
    """Endless passes over `size` samples, each pass shuffled anew.

    A seed of None or below 0 means a random one that all ranks agree on. Subclasses change what a
    pass holds by overriding `order`; it must return `epoch_size` indices for every epoch. With an
    `__iter__` of their own, a run is resumed by going through the indices up to its place.
    """

    def __init_subclass__(cls) -> None:
        if "_infinite_indices" in vars(cls) and cls.__iter__ is TrainingSampler.__iter__:
            raise TypeError(
                f"{cls.__name__}._infinite_indices, as in detectron2, is never called here: "
                "override order(epoch), which returns the indices of one pass over all ranks"
            )

    def __init__(
        self,
        size: int,
        shuffle: bool = True,
        seed: int | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.epoch_size = _checked_size(self, size)
        self.shuffle = shuffle
        self.seed = agree_on_seed(seed)
        self.rank = get_rank() if rank is None else rank
        self.world_size = get_world_size() if world_size is None else world_size

    def order(self, epoch: int) -> torch.Tensor:
        """The indices of one pass, over all ranks."""
        if not self.shuffle:
            return torch.arange(self.epoch_size)
        return torch.randperm(self.epoch_size, generator=self._generator(epoch))

    def iter_from(self, place: int) -> Iterator[int]:
        """This rank's indices from `place` on (samples consumed by all ranks), with no replay."""
        place += (self.rank - place) % self.world_size
        while True:
            epoch, offset = divmod(place, self.epoch_size)
            indices = self.order(epoch)[offset :: self.world_size].tolist()
            yield from indices
            place += len(indices) * self.world_size

    def __iter__(self) -> Iterator[int]:
        return self.iter_from(0)

    def state_dict(self) -> dict[str, int]:
        """What the order follows from. The place is the loader's to keep."""
        return {"seed": self.seed, "epoch_size": self.epoch_size}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.seed = state["seed"]
        if state["epoch_size"] != self.epoch_size:
            logger.warning(
                "An epoch had %d samples when this state was saved and has %d now: "
                "the samples come in another order than in the run that saved it.",
                state["epoch_size"],
                self.epoch_size,
            )

    def _generator(self, epoch: int) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(self.seed, epoch))


@SAMPLER_REGISTRY.register()
class RandomSubsetTrainingSampler(TrainingSampler):
    """Endless passes over a random share of the samples, the same share for the whole run."""

    def __init__(
        self,
        size: int,
        subset_ratio: float,
        shuffle: bool = True,
        seed_shuffle: int | None = None,
        seed_subset: int | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if not 0 < subset_ratio <= 1:
            raise ValueError(f"subset_ratio must be above 0 and at most 1, got {subset_ratio}")
        self.size = _checked_size(self, size)
        subset_size = int(size * subset_ratio)
        if subset_size == 0:
            raise ValueError(
                f"subset_ratio {subset_ratio} of {size} samples leaves none: use a larger ratio"
            )
        super().__init__(subset_size, shuffle, seed_shuffle, rank=rank, world_size=world_size)
        self._choose(agree_on_seed(seed_subset))

    def order(self, epoch: int) -> torch.Tensor:
        return self.subset[super().order(epoch)]

    def state_dict(self) -> dict[str, int]:
        return {**super().state_dict(), "seed_subset": self.seed_subset}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        super().load_state_dict(state)
        self._choose(state["seed_subset"])

    def _choose(self, seed_subset: int) -> None:
        self.seed_subset = seed_subset
        generator = torch.Generator().manual_seed(derive_seed(seed_subset, 0))
        self.subset = torch.randperm(self.size, generator=generator)[: self.epoch_size]


@SAMPLER_REGISTRY.register()
class RepeatFactorTrainingSampler(TrainingSampler):
    """Endless passes in which sample i appears `repeat_factors[i]` times on average.

    Each pass rounds the factors anew, up or down at random, and all passes have the same length:
    the sum of the factors, rounded up. The up to one sample that rounding adds is spread over all
    in proportion, so the samples' shares are exactly those of their factors.
    """

    def __init__(
        self,
        repeat_factors: Sequence[float] | torch.Tensor,
        *,
        shuffle: bool = True,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        factors = torch.as_tensor(repeat_factors, dtype=torch.float64)
        if factors.ndim != 1 or not bool((factors.isfinite() & (factors >= 0)).all()):
            raise ValueError("repeat_factors must be one finite number ≥ 0 for each sample")
        total = float(factors.sum())
        # Sums of thirds and the like miss a whole number by a few ulps: not one sample more for it.
        super().__init__(
            math.ceil(total - 1e-9 * total), shuffle, seed, rank=rank, world_size=world_size
        )
        self.repeat_factors = factors * (self.epoch_size / total)

    @staticmethod
    def repeat_factors_from_category_frequency(
        dataset_dicts: Sequence[Mapping[str, Any]], repeat_thresh: float, sqrt: bool = True
    ) -> torch.Tensor:
        """Factors that show samples of rare categories more often; one for each sample, all ≥ 1.

        A category's frequency is the share of samples that have it. Below `repeat_thresh` its
        factor is √(repeat_thresh / frequency), or that ratio itself without `sqrt`; a sample gets
        the largest factor among its categories. They are its `label` (one or a list of them), or
        the `category_id` of each of its `annotations`.
        """
        categories = [_categories(sample) for sample in dataset_dicts]
        counts = Counter(category for found in categories for category in found)
        factors = {}
        for category, count in counts.items():
            ratio = repeat_thresh * len(dataset_dicts) / count
            factors[category] = max(1.0, math.sqrt(ratio) if sqrt else ratio)
        return torch.tensor(
            [max((factors[category] for category in found), default=1.0) for found in categories],
            dtype=torch.float32,
        )

    def order(self, epoch: int) -> torch.Tensor:
        generator = self._generator(epoch)
        # Lay the factors end to end, in random order, on a line with a mark at every whole number
        # and a random start: a sample appears once for each mark it covers.
        order = torch.randperm(len(self.repeat_factors), generator=generator)
        ends = self.repeat_factors[order].cumsum(0)
        ends[-1] = self.epoch_size
        start = torch.rand((), generator=generator, dtype=torch.float64)
        marks = (ends + start).floor().clamp(max=self.epoch_size).long()
        repeats = torch.empty_like(order)
        repeats[order] = marks.diff(prepend=marks.new_zeros(1))
        indices = torch.arange(len(repeats)).repeat_interleave(repeats)
        if self.shuffle:
            indices = indices[torch.randperm(len(indices), generator=generator)]
        return indices


class InferenceSampler(Sampler[int]):
    """Every index of `range(size)` exactly once: a contiguous share for each rank.

    The shares differ by at most one sample, the first ranks having the longer ones.
    """

    def __init__(
        self, size: int, *, rank: int | None = None, world_size: int | None = None
    ) -> None:
        size = _checked_size(self, size)
        rank = get_rank() if rank is None else rank
        share, left = divmod(size, get_world_size() if world_size is None else world_size)
        begin = rank * share + min(rank, left)
        self.indices = range(begin, begin + share + (rank < left))

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


def rank_and_world_size(sampler: Any) -> tuple[int, int]:
    """The sampler's rank and number of ranks, if it has them, else this process's."""
    return getattr(sampler, "rank", get_rank()), getattr(sampler, "world_size", get_world_size())


def _checked_size(sampler: Sampler[int], size: int) -> int:
    name = type(sampler).__name__
    if not isinstance(size, int):
        raise TypeError(f"{name} needs the number of samples, got {size!r}")
    if size <= 0:
        raise ValueError(f"{name} got {size} samples: the data set is empty")
    return size


def _categories(sample: Mapping[str, Any]) -> set[Any]:
    if "annotations" in sample:
        return {annotation["category_id"] for annotation in sample["annotations"]}
    if "label" not in sample:
        raise KeyError(
            f"a sample needs 'label' or 'annotations' to have a category, got {sorted(sample)}"
        )
    label = sample["label"]
    if isinstance(label, torch.Tensor):
        label = label.tolist()
    return set(label) if isinstance(label, (list, tuple, set)) else {label}
