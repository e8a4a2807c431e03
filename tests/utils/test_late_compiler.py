import subprocess
import sys
from textwrap import dedent

import pytest

BEGIN = """
import sys
import torch
import torch.distributed as dist
from engine import SimpleTrainer
from engine.parallel.ddp import DistributedDataParallel
from engine.utils.late_compiler import compiler_put_off, import_compiler_late

class Model(torch.nn.Linear):
    def forward(self, batch):
        return super().forward(batch).mean()

model = Model(2, 1)
import_compiler_late()
"""


def run(program: str) -> None:
    subprocess.run([sys.executable, "-c", BEGIN + dedent(program)], check=True)


def test_a_run_of_several_processes_does_without_the_compiler():
    run("""
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        with compiler_put_off():
            wrapped = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        trainer = SimpleTrainer(wrapped, [torch.ones(1, 2)], optimizer)
        trainer.train(0, 3)
        trainer.load_state_dict(trainer.state_dict())
        assert "torch._dynamo" not in sys.modules
        dist.destroy_process_group()
    """)


def test_where_something_is_compiled_all_is_torchs():
    run("""
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        with compiler_put_off():
            wrapped = DistributedDataParallel(model)
        torch.compile(wrapped, backend="eager")(torch.ones(1, 2)).backward()
        assert model.weight.grad.tolist() == [[1, 1]]
        for _ in range(2):
            assert optimizer.state_dict()["param_groups"][0]["momentum"] == 0.9
        assert torch.optim.Optimizer.state_dict.__wrapped__.__dynamo_disable._torchdynamo_disable
        dist.destroy_process_group()
    """)


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["config.optimize_ddp", "utils.dynamo_timed"])
def test_what_else_is_asked_of_the_compiler_is_its_own(asked):
    run(f"""
        with compiler_put_off():
            assert torch._dynamo.{asked}
        assert torch._dynamo is sys.modules["torch._dynamo"]
    """)
