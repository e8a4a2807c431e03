import json
from pathlib import Path

import pytest
import torch

from engine import SimpleTrainer
from engine.hooks import AutogradProfiler, TorchProfiler
from engine.train_loop import TrainerBase

CPU = [torch.profiler.ProfilerActivity.CPU]


@pytest.fixture
def trainer(model, batches) -> SimpleTrainer:
    return SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.1))


def profiled_operators(path) -> set[str]:
    return {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}


def test_each_chosen_step_leaves_a_trace(trainer, tmp_path):
    output = tmp_path / "traces"
    hook = TorchProfiler(lambda t: t.iter in (1, 3), output, activities=CPU, save_tensorboard=False)
    trainer.register_hooks([hook])
    trainer.train(0, 5)
    assert sorted(path.name for path in output.iterdir()) == [
        "profiler-trace-iter1.json",
        "profiler-trace-iter3.json",
    ]
    assert "aten::addmm" in profiled_operators(output / "profiler-trace-iter1.json")


def test_a_config_chooses_steps_by_a_pair_of_iterations(trainer, tmp_path):
    trainer.register_hooks([TorchProfiler([1, 3], tmp_path, save_tensorboard=False)])
    trainer.train(0, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "profiler-trace-iter1.json",
        "profiler-trace-iter2.json",
    ]


@pytest.mark.parametrize("predicate", [5, [5], [1, 2, 3], None, "ab", ["a", 3]])
def test_what_chooses_no_steps_is_refused(tmp_path, predicate):
    with pytest.raises(TypeError, match=r"a pair of iterations such as \[10, 13\], got"):
        TorchProfiler(predicate, tmp_path)


def test_activities_are_those_of_torch(tmp_path):
    with pytest.raises(TypeError, match=r"an activity is a .*ProfilerActivity, got 'cpu'"):
        TorchProfiler([1, 3], tmp_path, activities=["cpu"])


def test_traces_for_tensorboard_go_below_log(trainer, tmp_path):
    trainer.register_hooks([TorchProfiler(lambda t: t.iter == 2, str(tmp_path))])
    trainer.train(0, 4)
    (folder,) = (tmp_path / "log").iterdir()
    (trace,) = folder.iterdir()
    assert folder.name.endswith("iter2")
    assert trace.name.startswith("worker0.")
    assert "aten::addmm" in profiled_operators(trace)


def test_a_failed_step_stops_its_profiler_and_leaves_no_trace(trainer, tmp_path):
    def fail(batch):
        raise OSError("disk is full")

    hook = TorchProfiler(lambda t: True, tmp_path, activities=CPU)
    trainer.register_hooks([hook])
    forward = trainer.model.forward
    trainer.model.forward = fail
    with pytest.raises(OSError, match="disk is full"):
        trainer.train(0, 2)
    assert not torch.autograd._profiler_enabled()
    assert list(tmp_path.rglob("*.json")) == []
    trainer.model.forward = forward
    trainer.train(0, 1)
    assert len(list(tmp_path.rglob("*.json"))) == 1


def test_the_autograd_profiler_warns_and_leaves_a_trace(trainer, tmp_path):
    with pytest.warns(DeprecationWarning, match="use TorchProfiler"):
        hook = AutogradProfiler(lambda t: t.iter == 1, str(tmp_path), use_cuda=False)
    trainer.register_hooks([hook])
    trainer.train(0, 3)
    (trace,) = tmp_path.iterdir()
    assert trace.name == "profiler-trace-iter1.json"
    assert "aten::addmm" in json.dumps(json.loads(trace.read_text()))


class Adding(TrainerBase):
    def run_step(self) -> None:
        torch.ones(1) + 1


def work(rank: int, folder: Path) -> None:
    trainer = Adding()
    output = folder / "traces"
    trainer.register_hooks([TorchProfiler([1, 2], output, activities=CPU, save_tensorboard=False)])
    trainer.train(0, 2)


def test_each_rank_leaves_a_trace_of_its_own(processes, folder):
    traces = sorted((folder / "traces").iterdir())
    assert [path.name for path in traces] == [
        "profiler-trace-iter1-rank0.json",
        "profiler-trace-iter1-rank1.json",
    ]
    assert all("aten::add" in profiled_operators(path) for path in traces)
