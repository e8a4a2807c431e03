"""The parts of sharded tensors, in files of torch.distributed.checkpoint.

To be imported where it is used: torch.distributed.checkpoint takes a while to load.
"""

import io
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata

from engine.utils.files import RawFile

INDEX = ".metadata"  # the name is torch's

_ADMITTED = {
    "torch.distributed.checkpoint.metadata": {
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
}


def write_parts(folder: str, parts: dict[str, torch.Tensor]) -> None:
    """Write this rank's parts, and on rank 0 the index. All ranks call it, and all raise if one
    does; what is written is not on the disk yet."""
    writer = checkpoint.FileSystemWriter(folder, sync_files=False)  # it syncs what is not flushed
    writer.fs = _Files()
    planner = checkpoint.DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        checkpoint.save(parts, storage_writer=writer, planner=planner)
    except CheckpointException as failed:  # is no Exception: nobody would catch it
        rank = min(failed.failures)
        error, _ = failed.failures[rank]
        kind = OSError if isinstance(error, OSError) else RuntimeError
        raise kind(f"rank {rank}: {error}") from error


def read_parts(folder: str, parts: dict[str, torch.Tensor]) -> None:
    """Fill tensors, whole ones or this rank's parts, however many ranks have written them."""
    reader = checkpoint.FileSystemReader(folder)
    index = _read_index(os.path.join(folder, INDEX))
    planner = checkpoint.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    # What checkpoint.load does, without its collectives: each rank knows what it needs.
    planner.set_up_planner(dict(parts), index, is_coordinator=True)
    reader.set_up_storage_reader(index, is_coordinator=True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    reader.read_data(planner.finish_plan(plan), planner).wait()


class _Files(FileSystem):
    """Says why a write has failed, which torch.save hides."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike, mode: str) -> Iterator[io.IOBase]:
        if mode != "wb":
            raise ValueError(f"parts are written with mode 'wb', not {mode!r}")
        raw = RawFile(path, "w")
        try:
            with io.BufferedWriter(raw) as stream:
                yield stream
        except Exception:
            if raw.error is not None:
                raise raw.error from None
            raise


def _read_index(path: str) -> Metadata:
    with open(path, "rb") as file:
        index = _IndexUnpickler(file).load()
    for info in index.storage_data.values():
        if os.path.basename(info.relative_path) != info.relative_path:
            raise ValueError(f"{info.relative_path!r} is not a file of the checkpoint")
    return index


class _IndexUnpickler(pickle.Unpickler):
    """Makes the objects that torch's index consists of, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "pathlib":
            return lambda *parts: None  # where the index was written is of no interest
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name in _ADMITTED.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"GLOBAL {module}.{name} is not part of an index")
