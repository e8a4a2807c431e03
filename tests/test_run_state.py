"""A run that was left anywhere and resumed is the run that was never left."""

import json
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from engine import HookBase, SimpleTrainer, TrainerBase
from engine.checkpoint import Checkpointer
from engine.data import build_train_loader
from engine.evaluation import DatasetEvaluator, inference_on_dataset
from engine.events import JSONWriter
from engine.hooks import (
    BestCheckpointer,
    CallbackHook,
    EarlyStopping,
    EMAHook,
    EvalHook,
    PeriodicCheckpointer,
    PeriodicWriter,
    StopOnSignal,
)

MAX_ITER = 20


class Dropping(nn.Module):
    """Draws from all generators, in training and in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        noise = random.random() + np.random.rand()
        return (self.layers(batch) + noise + torch.rand(())).square().mean()


class MeanLoss(DatasetEvaluator):
    def reset(self) -> None:
        self.losses: list[torch.Tensor] = []

    def process(self, inputs, outputs) -> None:
        self.losses.append(outputs)

    def evaluate(self) -> dict:
        return {"val": {"loss": torch.stack(self.losses).mean().item()}}


def train(folder: Path, *hooks: HookBase, workers: int = 0, **options) -> SimpleTrainer:
    """A run with everything that has state, resumed if there is something to resume."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7 if folder.exists() else 0)  # what start-up draws must not matter
    data = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    loader = build_train_loader(list(data), total_batch_size=4, num_workers=workers, seed=0)
    model = Dropping()
    trainer = SimpleTrainer(model, loader, torch.optim.Adam(model.parameters(), 0.1))
    checkpointer = Checkpointer(model, folder, trainer=trainer)
    folder.mkdir(exist_ok=True)

    def evaluate() -> dict:
        return inference_on_dataset(model, data.split(8), MeanLoss())

    trainer.register_hooks(
        [
            EMAHook(0.9),
            EvalHook(options.get("eval_period", 5), evaluate),
            EarlyStopping("-val/loss", options.get("patience", 50), min_delta=9.0),
            BestCheckpointer(0, checkpointer, "-val/loss"),
            PeriodicWriter([JSONWriter(folder / "metrics.json")], period=3),
            PeriodicCheckpointer(checkpointer, options.get("checkpoint_period", 4)),
            StopOnSignal(),
            *hooks,
        ]
    )
    trainer.iter = -1
    checkpointer.resume_or_load("")
    trainer.train(trainer.iter + 1, MAX_ITER)
    return trainer


def signal_in(point: str, iteration: int, batch: int = 0) -> HookBase:
    """A hook that sends a SIGTERM at a point of an iteration: in an evaluation, at a batch."""
    batches = []

    def send(trainer: TrainerBase, *args: object) -> None:
        if trainer.iter == iteration:
            batches.append(1)
            if len(batches) == batch + 1:
                signal.raise_signal(signal.SIGTERM)

    return CallbackHook(**{point: send})


def left_by(folder: Path) -> dict:
    """What a run has left, but for times."""
    names = [path.name for path in folder.glob("*.pth")]
    final = torch.load(folder / "model_final.pth", weights_only=True) if names else {}
    lines = [json.loads(line) for line in (folder / "metrics.json").read_text().splitlines()]
    hooks = final["trainer"]["hooks"]
    return {
        "weights": {name: value.tolist() for name, value in final["model"].items()},
        "average": {name: v.tolist() for name, v in hooks["EMAHook"]["average"].items()},
        "best": hooks["BestCheckpointer"],
        "early stopping": hooks["EarlyStopping"],
        "random": final["trainer"]["random_states"][0]["torch"].tolist(),
        "lines": [{k: v for k, v in line.items() if "time" not in k} for line in lines],
    }


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """What a run leaves that nothing interrupts."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    train(folder)
    return left_by(folder)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_failed_and_was_resumed_is_exact(straight, tmp_path, workers):
    def fail(trainer: TrainerBase) -> None:
        if trainer.iter == 14:
            raise InterruptedError("killed")

    folder = tmp_path / "run"
    with pytest.raises(InterruptedError):
        train(folder, CallbackHook(before_step=fail), workers=workers)
    assert train(folder, workers=workers).start_iter == 12
    assert left_by(folder) == straight


@pytest.mark.parametrize(
    ("interruption", "begins_at"),
    [
        pytest.param(signal_in("before_step", 0), 1, id="in the first step"),
        pytest.param(signal_in("before_step", 10), 11, id="in a step"),
        pytest.param(signal_in("after_backward", 9), 10, id="in a step before an evaluation"),
        pytest.param(signal_in("before_eval", 9), 10, id="before an evaluation"),
        pytest.param(signal_in("after_eval_step", 9), 10, id="after one of its batches"),
        pytest.param(signal_in("after_eval_step", 9, batch=3), 10, id="after its last batch"),
        pytest.param(signal_in("after_eval", 9), 10, id="after an evaluation"),
        pytest.param(signal_in("after_step", 11), 12, id="after a step with a checkpoint"),
        pytest.param(signal_in("before_step", 19), 20, id="in the last step"),
        pytest.param(signal_in("before_eval", 20), 20, id="before the last evaluation"),
        pytest.param(signal_in("after_eval_step", 20, batch=2), 20, id="in the last evaluation"),
    ],
)
def test_a_run_that_was_stopped_anywhere_and_resumed_is_exact(
    straight, tmp_path, interruption, begins_at
):
    folder = tmp_path / "run"
    stopped = train(folder, interruption)
    assert stopped.requeue
    assert not stopped.failed
    resumed = train(folder)
    assert (resumed.start_iter, resumed.iter, resumed.requeue) == (begins_at, 20, False)
    assert left_by(folder) == straight


def test_a_run_that_is_stopped_over_and_over_is_exact(straight, tmp_path):
    folder = tmp_path / "run"
    stops = 0
    for point, iteration, batch in [
        ("before_step", 2, 0),
        ("after_eval_step", 4, 0),
        ("after_eval_step", 4, 1),  # the evaluation that was left is left again
        ("before_step", 5, 0),
        ("after_eval_step", 20, 0),
        ("after_eval_step", 20, 2),
    ]:
        stops += train(folder, signal_in(point, iteration, batch)).requeue
    train(folder)
    assert stops == 6
    assert left_by(folder) == straight


def test_a_kill_after_an_evaluation_that_was_taken_up_is_exact(straight, tmp_path):
    def fail(trainer: TrainerBase) -> None:
        if trainer.iter == 6:
            raise InterruptedError("killed")

    folder = tmp_path / "run"
    assert train(folder, signal_in("after_eval_step", 4)).requeue
    with pytest.raises(InterruptedError):  # no checkpoint has come since
        train(folder, CallbackHook(before_step=fail))
    assert train(folder).start_iter == 5
    assert left_by(folder) == straight


def test_the_last_evaluation_is_done_where_a_kill_has_left_it(straight, tmp_path):
    """The checkpoint of the last step is there, `model_final` is not."""

    def fail(trainer: TrainerBase, *args: object) -> None:
        if trainer.iter == 20:
            raise InterruptedError("killed")

    folder = tmp_path / "run"
    with pytest.raises(InterruptedError):
        train(folder, CallbackHook(before_eval_step=fail))
    resumed = train(folder)
    assert (resumed.start_iter, resumed.iter) == (20, 20)
    assert left_by(folder) == straight


def test_a_finished_run_is_not_touched(straight, tmp_path, log):
    folder = tmp_path / "run"
    train(folder)
    train(folder, CallbackHook(before_train=lambda trainer: pytest.fail("a hook was called")))
    assert "Nothing to train: iteration 20 of 20 is reached" in log.text
    assert left_by(folder) == straight


# --- runs that were stopped for good -----------------------------------------------------------


def stopped_early(folder: Path, *hooks: HookBase) -> SimpleTrainer:
    return train(folder, *hooks, patience=1, eval_period=4)  # no gain is large enough


def test_a_run_that_has_stopped_for_good_is_not_trained_further(tmp_path, log):
    assert stopped_early(tmp_path / "run").iter == 8
    lines = (tmp_path / "run" / "metrics.json").read_text()
    log.clear()
    stopped_early(tmp_path / "run")
    said = "Nothing to train: iteration 8 of 20 is reached; val/loss has not improved for 1 eval"
    assert said in log.text
    assert (tmp_path / "run" / "metrics.json").read_text() == lines


def test_the_end_of_a_run_that_has_stopped_for_good_is_taken_up(tmp_path):
    stopped_early(tmp_path / "straight")
    left = stopped_early(tmp_path / "left", signal_in("after_eval_step", 8))
    assert left.requeue
    resumed = stopped_early(tmp_path / "left")
    assert (resumed.iter, resumed.requeue) == (8, False)
    lines = [
        [json.loads(line) for line in (tmp_path / name / "metrics.json").read_text().splitlines()]
        for name in ("straight", "left")
    ]
    for one, other in zip(*lines, strict=True):
        assert {k: v for k, v in one.items() if "time" not in k} == {
            k: v for k, v in other.items() if "time" not in k
        }


def test_a_larger_max_iter_trains_a_stopped_run_further():
    class Steps(TrainerBase):
        def run_step(self) -> None:
            if self.iter == 3:
                self.storage.early_stop = True

    trainer = Steps()
    trainer.train(0, 9)
    state = trainer.state_dict()
    trainer.load_state_dict(state)
    trainer.train(4, 9)
    assert trainer.iter == 4
    trainer.load_state_dict(state)
    trainer.train(4, 10)
    assert trainer.iter == 10


# --- what a state holds ------------------------------------------------------------------------


class Steps(TrainerBase):
    """Draws a number in each step; an epoch is three of them."""

    def __init__(self, *hooks: HookBase) -> None:
        super().__init__()
        self.drawn: list[float] = []
        self.register_hooks(hooks)

    def run_step(self) -> None:
        self.drawn.append(torch.rand(()).item())

    def epoch_of(self, iteration: int) -> int:
        return iteration // 3


def test_only_the_trainer_that_runs_holds_the_random_states():
    class Outer(TrainerBase):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Steps()

        def run_step(self) -> None:
            self.inner.run_step()

        def state_dict(self) -> dict:
            return {**super().state_dict(), "inner": self.inner.state_dict()}

    trainer = Outer()
    trainer.train(0, 2)
    state = trainer.state_dict()
    assert len(state["random_states"]) == 1
    assert "random_states" not in state["inner"]


def test_a_state_of_before_is_still_taken():
    trainer = Steps()
    trainer.train(0, 3)
    state = trainer.state_dict()
    for key in ("random_states", "finished"):
        del state[key]
    resumed = Steps()
    resumed.load_state_dict(state)
    resumed.train(3, 5)
    assert len(resumed.drawn) == 2


def test_a_run_that_does_not_go_on_from_the_saved_one_keeps_its_seed():
    trainer = Steps()
    trainer.train(0, 3)
    state = trainer.state_dict()
    trainer.load_state_dict(state)
    torch.manual_seed(5)
    trainer.train(1, 3)
    torch.manual_seed(5)
    assert trainer.drawn[3:] == [torch.rand(()).item() for _ in range(2)]


def test_a_checkpoint_at_the_end_of_an_epoch_owes_it_the_hooks_of_that_end():
    class CountingEpochs(HookBase):
        count = 0

        def after_epoch(self) -> None:
            self.count += 1

        def state_dict(self) -> dict:
            return {"count": self.count}

        def load_state_dict(self, state_dict: dict) -> None:
            self.count = state_dict["count"]

    states = []
    save = CallbackHook(after_step=lambda trainer: states.append(trainer.state_dict()))
    Steps(counter := CountingEpochs(), save).train(0, 9)
    assert counter.count == 3
    for state in states:
        resumed = Steps(counter := CountingEpochs(), CallbackHook())
        resumed.load_state_dict(state)
        resumed.train(resumed.iter + 1, 9)
        assert counter.count == 3


def test_a_hook_that_is_no_longer_there_is_named(log):
    def evaluate() -> None:
        trainer.stop("no time", requeue=True)
        trainer.before_eval_step()

    trainer = Steps(EvalHook(2, evaluate))
    trainer.train(0, 4)
    assert trainer.state_dict()["left_at"] == {"point": "after_step", "hook": "EvalHook"}
    resumed = Steps()
    resumed.load_state_dict(trainer.state_dict())
    resumed.train(2, 4)
    assert "after_step was left at the hook EvalHook: there is no such hook now" in log.text
    assert resumed.iter == 4


def test_an_evaluation_of_the_first_moment_may_be_left_too():
    evaluation = EvalHook(0, lambda: None)

    def evaluate(trainer: TrainerBase) -> None:
        trainer.stop("no time", requeue=True)
        evaluation._do_eval()

    trainer = Steps(evaluation, CallbackHook(before_train=evaluate))
    trainer.train(0, 4)
    assert (trainer.drawn, trainer.requeue, trainer.has_advanced) == ([], True, False)
