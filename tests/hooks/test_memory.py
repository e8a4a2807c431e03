import pytest
import torch

from engine import TrainerBase
from engine.hooks import TorchMemoryStats


class Steps(TrainerBase):
    def run_step(self) -> None:
        pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is memory to report")
def test_without_a_cuda_device_nothing_is_logged(log):
    trainer = Steps()
    trainer.register_hooks([TorchMemoryStats(period=2)])
    trainer.train(0, 6)
    assert "Memory at iteration" not in log.text
    assert trainer.iter == 6


@pytest.fixture
def cuda_figures(monkeypatch):
    """Figures in place of a device, in which the peak falls when it is reset."""
    peak = {"MB": 100}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: peak["MB"] * 2**20)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 3 * 2**20)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 2 * 2**20)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 2**20)
    monkeypatch.setattr(torch.cuda, "memory_summary", lambda: "the full summary")
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: peak.update(MB=4))


@pytest.mark.usefixtures("cuda_figures")
def test_memory_is_logged_so_many_times_with_a_new_peak_each_and_a_summary_at_last(log):
    trainer = Steps()
    trainer.register_hooks([TorchMemoryStats(period=2, max_runs=2)])
    trainer.train(0, 10)
    rest = "MB, reserved 3 MB, max allocated 2 MB, allocated 1 MB"
    memory = [record.message for record in log.records if record.name == "engine.hooks.memory"]
    assert memory == [
        f"Memory at iteration 1: max reserved 100 {rest}",
        f"Memory at iteration 3: max reserved 4 {rest}",
        "\nthe full summary",
    ]


@pytest.mark.usefixtures("cuda_figures")
def test_memory_is_logged_at_the_last_step(log):
    trainer = Steps()
    trainer.register_hooks([TorchMemoryStats(period=20)])
    trainer.train(0, 5)
    assert "Memory at iteration 4: max reserved 100 MB" in log.text
