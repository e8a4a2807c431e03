"""Trainers, hooks and models that several test files use."""

from collections.abc import Callable

import torch
from torch import nn

from engine import EventStorage, HookBase, SimpleTrainer, TrainerBase
from engine.hooks import CallbackHook
from engine.hooks.base import POINTS


class Steps(TrainerBase):
    """Does nothing in a step but say that a backward pass is done."""

    def __init__(self, *hooks: HookBase, epoch_length: int | None = None) -> None:
        super().__init__()
        self._length = epoch_length
        self.done: list[int] = []
        self.register_hooks(hooks)

    def run_step(self) -> None:
        self.after_backward()
        self.done.append(self.iter)

    def epoch_of(self, iteration: int) -> int | None:
        return None if self._length is None else iteration // self._length


class OwnLoop(TrainerBase):
    """Has the loop written out, as users of detectron2 do."""

    def train(self, start_iter: int, max_iter: int) -> None:
        self.iter = self.start_iter = start_iter
        self.max_iter = max_iter
        with EventStorage(start_iter) as self.storage:
            try:
                self.before_train()
                for self.iter in range(start_iter, max_iter):
                    self.before_step()
                    self.run_step()
                    self.after_step()
                self.iter += 1
            finally:
                self.after_train()


class Pair:
    """SGD for a model's weights and Adam for its biases: one optimizer, but not one of torch's."""

    def __init__(self, model: nn.Module) -> None:
        weights = [p for name, p in model.named_parameters() if "bias" not in name]
        biases = [p for name, p in model.named_parameters() if "bias" in name]
        sgd = torch.optim.SGD(weights, lr=0.05, momentum=0.9)
        self.both = [sgd, torch.optim.Adam(biases, lr=0.05)]

    @property
    def param_groups(self) -> list[dict]:
        return [group for one in self.both for group in one.param_groups]

    def step(self) -> None:
        for one in self.both:
            one.step()

    def zero_grad(self) -> None:
        for one in self.both:
            one.zero_grad()

    def state_dict(self) -> dict:
        return {"both": [one.state_dict() for one in self.both]}

    def load_state_dict(self, state: dict) -> None:
        for one, its_state in zip(self.both, state["both"], strict=True):
            one.load_state_dict(its_state)


class Evaluation(HookBase):
    """Evaluates on one batch after the step `at`."""

    def __init__(self, at: int) -> None:
        self.at = at

    def after_step(self) -> None:
        if self.trainer.iter == self.at:
            self.trainer.before_eval()
            self.trainer.before_eval_step()
            self.trainer.after_eval_step("outputs")
            self.trainer.after_eval({"accuracy": 1.0})


class Counter(HookBase):
    """Counts steps."""

    count = 0

    def after_step(self) -> None:
        self.count += 1


def recorder(calls: list[str], name: str = "") -> CallbackHook:
    """Notes every point that it is called at, with the iteration."""

    def note(point: str):
        return lambda trainer, *args: calls.append(f"{name}{point} {trainer.iter}")

    return CallbackHook(**{point: note(point) for point in POINTS})


def at(iteration: int, action):
    """A function for CallbackHook that acts in one iteration only."""
    return lambda trainer, *args: action(trainer) if trainer.iter == iteration else None


def fail(*args) -> None:
    raise OSError("disk is full")


class Numbered(nn.Module):
    """Returns what `outputs` makes of its weight and the batch, which is a number."""

    def __init__(self, outputs: Callable) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.outputs = outputs
        self.batches: list = []

    def forward(self, batch):
        self.batches.append(batch)
        return self.outputs(self.weight, batch)


def make_trainer(model: nn.Module, batches, lr: float = 0.1, **options) -> SimpleTrainer:
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    return SimpleTrainer(model, batches, optimizer, **options)


def weights(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()
