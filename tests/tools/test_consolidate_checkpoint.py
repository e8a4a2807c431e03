import pytest
import torch
import torch.distributed as dist
from torch import nn

from engine.checkpoint import Checkpointer


@pytest.fixture
def sharded_checkpoint(tmp_path):
    """The folder of a sharded model, and its weight."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = fully_shard(nn.Linear(3, 3), mesh=init_device_mesh("cpu", (1,)))
    Checkpointer(model, tmp_path / "run").save("model_final")
    weight = model.state_dict()["weight"].full_tensor()
    dist.destroy_process_group()
    return tmp_path / "run" / "model_final", weight


def test_a_folder_becomes_one_file(run_tool, capsys, sharded_checkpoint, tmp_path):
    folder, weight = sharded_checkpoint
    run_tool("consolidate_checkpoint.py", folder, tmp_path / "out.pth", "--weights-only")
    stored = torch.load(tmp_path / "out.pth", weights_only=True)
    assert torch.equal(stored["model"]["weight"], weight)
    assert capsys.readouterr().out == f"Wrote {tmp_path / 'out.pth'}\n"


def test_a_mistake_is_one_line(run_tool, tmp_path):
    with pytest.raises(SystemExit, match=r"^FileNotFoundError: there is no checkpoint .*nothing$"):
        run_tool("consolidate_checkpoint.py", tmp_path / "nothing", tmp_path / "out.pth")
