"""Loaders as a config describes them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from engine.config import CfgNode, ConfigError, naming, naming_unknown
from engine.data.catalog import DatasetCatalog, get_dataset
from engine.data.loader import TRAIN_LOADER_REGISTRY, build_test_loader
from engine.data.samplers import (
    SAMPLER_REGISTRY,
    RandomSubsetTrainingSampler,
    RepeatFactorTrainingSampler,
    TrainingSampler,
)
from engine.parallel.comm import get_world_size
from engine.utils.registry import find, locate_function


def train_loader_from_config(cfg: CfgNode, mapper: Callable[..., Any] | None = None) -> Any:
    """The loader DATALOADER.TRAIN_LOADER over DATASETS.TRAIN, an endless one.

    A `mapper` takes the place of DATALOADER.MAPPER.
    """
    if not cfg.DATASETS.TRAIN:
        raise ConfigError("DATASETS.TRAIN is empty: name at least one data set to train on")
    size, ranks = cfg.SOLVER.IMS_PER_BATCH, get_world_size()
    if size % ranks:
        raise ConfigError(
            f"SOLVER.IMS_PER_BATCH is {size}, which cannot be split over {ranks} processes; the "
            f"next that can is {size + -size % ranks}"
        )
    loader = cfg.DATALOADER
    _refuse_unknown("DATASETS.TRAIN", cfg.DATASETS.TRAIN)
    dataset = _load(cfg.DATASETS.TRAIN)
    with naming_unknown("DATALOADER.TRAIN_LOADER"):
        build = find(TRAIN_LOADER_REGISTRY, loader.TRAIN_LOADER)
    with naming_unknown("DATALOADER.MAPPER"):
        mapper = mapper or find_function(loader.MAPPER)
    return build(
        dataset,
        total_batch_size=cfg.SOLVER.IMS_PER_BATCH,
        mapper=mapper,
        sampler=_sampler(cfg, dataset),
        seed=cfg.SEED,
        num_workers=loader.NUM_WORKERS,
        prefetch_factor=loader.PREFETCH_FACTOR,
        pin_memory=loader.PIN_MEMORY,
        num_folds=loader.NUM_FOLDS,
        **_collation(cfg),
    )


def test_loader_from_config(
    cfg: CfgNode,
    dataset_name: str,
    mapper: Callable[..., Any] | None = None,  # noqa: PT028 (it is no test)
) -> DataLoader[Any]:
    """A loader over one test set, or over those of a group of DATASETS.TEST_GROUPS.

    A `mapper` takes the place of DATALOADER.TEST_MAPPER.
    """
    with naming_unknown("DATALOADER.TEST_MAPPER"):
        mapper = mapper or find_function(cfg.DATALOADER.TEST_MAPPER)
    return build_test_loader(
        _load(members_of(cfg, dataset_name)),
        mapper=mapper,
        batch_size=cfg.TEST.BATCH_SIZE,
        num_workers=cfg.DATALOADER.NUM_WORKERS,
        **_collation(cfg),
    )


def members_of(cfg: CfgNode, dataset_name: str) -> list[str]:
    """The data sets of a group of DATASETS.TEST_GROUPS; of a data set its own name."""
    members = cfg.DATASETS.TEST_GROUPS.get(dataset_name, dataset_name)
    if not members:
        raise ConfigError(
            f"the group {dataset_name!r} of DATASETS.TEST_GROUPS names no data set, got "
            f"{members!r}: name some, or leave the group out"
        )
    return list(members) if isinstance(members, list | tuple) else [members]


def check_test_sets(cfg: CfgNode) -> None:
    """Refuse data sets of evaluations that are not in the catalog, and groups that have their
    names."""
    groups = cfg.DATASETS.TEST_GROUPS
    if both := groups.keys() & {*cfg.DATASETS.VAL, *cfg.DATASETS.TEST}:
        raise ConfigError(
            f"DATASETS: {', '.join(sorted(both))} is a group of TEST_GROUPS, and in VAL or TEST as "
            "well: groups are evaluated anyway, so leave it out there or rename it"
        )
    for key, names in (
        ("VAL", cfg.DATASETS.VAL),
        ("TEST", cfg.DATASETS.TEST),
        ("TEST_GROUPS", groups),
    ):
        for name in names:
            _refuse_unknown(f"DATASETS.{key}", members_of(cfg, name))


def _refuse_unknown(key: str, names: Sequence[str]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"{key}: expected the name of a data set, got {name!r}")
        if name not in DatasetCatalog:
            with naming_unknown(key):
                DatasetCatalog.get(name)  # raises, with the nearest name


def _load(names: Sequence[str]) -> Any:
    """The data sets of these names as one, which must have samples."""
    dataset = get_dataset(names)
    if not isinstance(dataset, IterableDataset) and len(dataset) == 0:
        raise ConfigError(f"the data set {' + '.join(names)} is empty: it has no samples")
    return dataset


def find_function(name: str) -> Callable[..., Any] | None:
    """The function that a config names, "package.module:function"; None for ""."""
    return locate_function(name) if name else None


def _collation(cfg: CfgNode) -> dict[str, Any]:
    # Left out where it is torch's: a builder of loaders that is the user's own may not know it.
    with naming_unknown("DATALOADER.COLLATE"):
        collate = find_function(cfg.DATALOADER.COLLATE)
    return {"collate_fn": collate} if collate else {}


def _sampler(cfg: CfgNode, dataset: Any) -> Sampler[int] | None:
    if isinstance(dataset, IterableDataset):  # chooses its samples itself
        return None
    name, loader = cfg.DATALOADER.SAMPLER_TRAIN, cfg.DATALOADER
    sampler_class = _sampler_class(name)
    by_category = issubclass(sampler_class, RepeatFactorTrainingSampler)
    if by_category or cfg.DATASETS.TRAIN_REPEAT_FACTOR:
        if not by_category:
            if sampler_class is not TrainingSampler:
                raise ConfigError(
                    f"DATASETS.TRAIN_REPEAT_FACTOR does not go with the sampler {name}: use "
                    "TrainingSampler or RepeatFactorTrainingSampler"
                )
            sampler_class = RepeatFactorTrainingSampler
        factors = _repeat_factors(cfg.DATASETS.TRAIN, cfg.DATASETS.TRAIN_REPEAT_FACTOR)
        if by_category:
            factors *= RepeatFactorTrainingSampler.repeat_factors_from_category_frequency(
                [dataset[index] for index in range(len(dataset))],
                loader.REPEAT_THRESHOLD,
                loader.REPEAT_SQRT,
            )
        return sampler_class(factors, seed=cfg.SEED)
    if issubclass(sampler_class, RandomSubsetTrainingSampler):
        ratio, seed = loader.RANDOM_SUBSET_RATIO, cfg.SEED
        with naming("DATALOADER.RANDOM_SUBSET_RATIO"):
            return sampler_class(len(dataset), ratio, seed_shuffle=seed, seed_subset=seed)
    return sampler_class(len(dataset), seed=cfg.SEED)


def _sampler_class(name: str) -> Any:
    with naming_unknown("DATALOADER.SAMPLER_TRAIN"):
        found = find(SAMPLER_REGISTRY, name)
    if not isinstance(found, type):
        raise ConfigError(f"DATALOADER.SAMPLER_TRAIN: {name} is no class, but {found!r:.80}")
    return found


def _repeat_factors(names: Sequence[str], factors: Sequence[Sequence[Any]]) -> torch.Tensor:
    """The factor of each sample, from those given for whole data sets."""
    try:
        by_name = {name: float(factor) for name, factor in factors}
    except (TypeError, ValueError):
        raise ConfigError(
            f"DATASETS.TRAIN_REPEAT_FACTOR is like [[{names[0]}, 2.0]], got {factors!r}"
        ) from None
    unknown = by_name.keys() - set(names)
    if unknown:
        raise ConfigError(
            f"DATASETS.TRAIN_REPEAT_FACTOR names {', '.join(sorted(unknown))}, "
            f"not in DATASETS.TRAIN ({', '.join(names)})"
        )
    for name, factor in by_name.items():
        if not 0 <= factor < math.inf:
            raise ConfigError(
                f"DATASETS.TRAIN_REPEAT_FACTOR of {name} is {factor}; expected 0 or more, but "
                "finite"
            )
    if not any(by_name.get(name, 1.0) for name in names):
        raise ConfigError(
            f"DATASETS.TRAIN_REPEAT_FACTOR is {factors!r}, which leaves no samples: give a data "
            "set of DATASETS.TRAIN a factor above 0"
        )
    parts = [torch.full((len(get_dataset(name)),), by_name.get(name, 1.0)) for name in names]
    return torch.cat(parts)
