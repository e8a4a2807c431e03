"""Data: catalogs, samplers, loaders that start anywhere, and three embedded data sets."""

from engine.data.catalog import DatasetCatalog, Metadata, MetadataCatalog, get_dataset
from engine.data.dataset import DatasetFromList, MapDataset, SampleError, ToIterableDataset
from engine.data.digits import load_digits
from engine.data.fashion_mnist import load_fashion_mnist, read_idx
from engine.data.from_config import test_loader_from_config, train_loader_from_config
from engine.data.images import LabelledImages
from engine.data.loader import (
    TRAIN_LOADER_REGISTRY,
    build_batch_data_loader,
    build_test_loader,
    build_train_loader,
    trivial_batch_collator,
    worker_init_reset_seed,
)
from engine.data.samplers import (
    SAMPLER_REGISTRY,
    InferenceSampler,
    RandomSubsetTrainingSampler,
    RepeatFactorTrainingSampler,
    TrainingSampler,
)
from engine.data.seeds import derive_seed, sample_generator
from engine.data.text import CharacterDataset, load_characters
from engine.data.train_loader import TrainLoader
from engine.data.workers import LostWorkerError

__all__ = [
    "SAMPLER_REGISTRY",
    "TRAIN_LOADER_REGISTRY",
    "CharacterDataset",
    "DatasetCatalog",
    "DatasetFromList",
    "InferenceSampler",
    "LabelledImages",
    "LostWorkerError",
    "MapDataset",
    "Metadata",
    "MetadataCatalog",
    "RandomSubsetTrainingSampler",
    "RepeatFactorTrainingSampler",
    "SampleError",
    "ToIterableDataset",
    "TrainLoader",
    "TrainingSampler",
    "build_batch_data_loader",
    "build_test_loader",
    "build_train_loader",
    "derive_seed",
    "get_dataset",
    "load_characters",
    "load_digits",
    "load_fashion_mnist",
    "read_idx",
    "sample_generator",
    "test_loader_from_config",
    "train_loader_from_config",
    "trivial_batch_collator",
    "worker_init_reset_seed",
]
