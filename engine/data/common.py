"""What detectron2 has in the module of this name."""

from engine.data.dataset import DatasetFromList, MapDataset, ToIterableDataset

__all__ = ["DatasetFromList", "MapDataset", "ToIterableDataset"]
