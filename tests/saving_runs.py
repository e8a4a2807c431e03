"""Runs that save, and what is in their folders."""

from pathlib import Path

import torch
from torch import nn

from engine import SimpleTrainer
from engine.hooks import CallbackHook, EvalHook


class Wide(nn.Module):
    """A model whose checkpoint takes 50 kB of disk."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2500)

    def forward(self, batch) -> dict[str, torch.Tensor]:
        return {"loss": self.linear(batch[0]).square().mean()}


def make_trainer(model, batches, *hooks, lr: float = 0.01) -> SimpleTrainer:
    trainer = SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), lr, momentum=0.9))
    trainer.register_hooks(hooks)
    return trainer


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "manifest.json")


def last(folder: Path) -> str:
    return (folder / "last_checkpoint").read_text()


def stop_at(iteration: int) -> CallbackHook:
    def after_step(trainer) -> None:
        if trainer.iter == iteration:
            trainer.stop("enough")

    return CallbackHook(after_step=after_step)


def fail_at(iteration: int) -> CallbackHook:
    def after_step(trainer) -> None:
        if trainer.iter == iteration:
            raise RuntimeError("the step failed")

    return CallbackHook(after_step=after_step)


def weights(model: nn.Module) -> dict[str, list]:
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


def saved_weights(path: Path) -> dict[str, list]:
    state = torch.load(path, weights_only=True)["model"]
    return {name: tensor.tolist() for name, tensor in state.items()}


def best_run(model, batches, metrics, *hooks, **options) -> SimpleTrainer:
    """40 steps with an evaluation every ten, which gives these metrics one after the other."""
    left = iter(metrics)
    return make_trainer(
        model, batches, EvalHook(10, lambda: {"test": {"score": next(left)}}, **options), *hooks
    )
