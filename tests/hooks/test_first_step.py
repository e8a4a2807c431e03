import logging

import pytest
import torch
from torch import nn

from engine import SimpleTrainer, TrainerBase, hooks


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(2, 1)
        self.forgotten = nn.Linear(2, 1)
        self.frozen = nn.Linear(2, 1).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x).mean() + self.used(x).mean()


def train(model: nn.Module, groups, *others: hooks.HookBase) -> None:
    trainer = SimpleTrainer(model, [torch.ones(1, 2)], torch.optim.SGD(groups, lr=0.1))
    trainer.register_hooks([*others, hooks.FirstStepCheck()])
    trainer.train(0, 3)


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [m for m in caplog.messages if "trained parameters" in m]


def test_parameters_that_do_not_learn_are_named_once(said):
    model = Model()
    idle = {"params": [model.used.bias, *model.forgotten.parameters()], "lr": 0.0}
    train(model, [idle])
    assert said() == [
        "Of 4 trained parameters, 2 got no gradient: forgotten.weight, forgotten.bias",
        "Of 4 trained parameters, 1 are not in the optimizer: used.weight",
        "Of 4 trained parameters, 3 have a learning rate of 0: used.bias, forgotten.weight, "
        "forgotten.bias",
    ]


def test_a_model_in_good_health_is_one_line(said):
    model = Model()
    del model.forgotten
    train(model, model.parameters())
    assert said() == ["All 2 trained parameters have a gradient and learn"]


def test_a_warm_up_from_0_and_gradients_held_back_are_no_fault(said):
    model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    groups = [{"params": list(model.parameters()), "lr": 0.0, "initial_lr": 0.1}]
    train(model, groups, hooks.FreezeGradients("0", 2))
    assert said() == ["All 2 trained parameters have a gradient and learn"]


def test_long_lists_are_cut(said):
    layers = nn.ModuleList(nn.Linear(2, 1) for _ in range(9))
    layers.forward = lambda x: layers[0](x).mean()
    train(layers, layers.parameters())
    assert said()[0].endswith("16 got no gradient: 1.weight, 1.bias, 2.weight, 2.bias, 3.weight, …")


def test_a_trainer_of_another_kind_is_let_alone(said):
    class Bare(TrainerBase):
        def run_step(self) -> None:
            self.after_backward()

    trainer = Bare()
    trainer.register_hooks([hooks.FirstStepCheck()])
    trainer.train(0, 2)
    trainer.model, trainer.optimizer = [nn.Linear(1, 1)], {}
    trainer.train(0, 2)
    assert said() == []
