import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from engine.checkpoint.parts import INDEX, read_parts, write_parts


class Payload:
    """Makes a folder when it is unpickled without care."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.fixture
def weights(shard):
    return shard(nn.Linear(3, 5)).state_dict()


def test_parts_come_back_as_parts_or_whole(tmp_path, weights):
    write_parts(str(tmp_path), weights)
    sharded = {name: torch.empty_like(value) for name, value in weights.items()}
    whole = {name: torch.empty(value.shape) for name, value in weights.items()}
    read_parts(str(tmp_path), sharded)
    read_parts(str(tmp_path), whole)
    for name, value in weights.items():
        assert torch.equal(sharded[name].to_local(), value.to_local())
        assert torch.equal(whole[name], value.full_tensor())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_any_dtype_comes_back(tmp_path, weights, dtype):
    tensor = weights["weight"].to(dtype)
    write_parts(str(tmp_path), {"a": tensor})
    loaded = torch.empty(5, 3, dtype=dtype)
    read_parts(str(tmp_path), {"a": loaded})
    assert torch.equal(loaded, tensor.full_tensor())


def test_a_payload_in_the_index_is_refused_and_not_run(tmp_path, weights):
    write_parts(str(tmp_path), weights)
    (tmp_path / INDEX).write_bytes(pickle.dumps(Payload(tmp_path / "hacked")))
    with pytest.raises(pickle.UnpicklingError, match="mkdir is not part of an index"):
        read_parts(str(tmp_path), {"weight": torch.empty(5, 3)})
    assert not (tmp_path / "hacked").exists()


def test_files_outside_the_folder_are_not_read(tmp_path, weights):
    write_parts(str(tmp_path), weights)
    index = pickle.loads((tmp_path / INDEX).read_bytes())
    for info in index.storage_data.values():
        info.relative_path = f"../{info.relative_path}"
    (tmp_path / INDEX).write_bytes(pickle.dumps(index))
    with pytest.raises(ValueError, match=r"'\.\./__0_0.distcp' is not a file of the checkpoint"):
        read_parts(str(tmp_path), {"weight": torch.empty(5, 3)})


def test_a_failed_write_says_why(weights, small_disk):
    large = torch.distributed.tensor.distribute_tensor(
        torch.zeros(500_000), weights["weight"].device_mesh
    )
    with pytest.raises(OSError, match=r"rank 0: .*No space left"):
        write_parts(str(small_disk / "model"), {"a": large})
