import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from engine import SimpleTrainer
from engine.config import ConfigError
from engine.hooks import CallbackHook
from engine.hooks.freeze_gradients import FreezeGradients


def changed_steps(model, batches, hook, wrapped=None):
    """The steps that changed each parameter, in a run of two epochs of six steps."""
    steps = {name: [] for name, _ in model.named_parameters()}
    before = {}

    def note(trainer):
        for name, parameter in model.named_parameters():
            if name in before and not torch.equal(before[name], parameter):
                steps[name].append(trainer.iter)
            before[name] = parameter.detach().clone()

    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    trainer = SimpleTrainer(wrapped or model, batches, optimizer)
    trainer.register_hooks([hook, CallbackHook(before_train=note, after_step=note)])
    trainer.train(0, 12)
    return steps


@pytest.mark.parametrize(("length", "first"), [(3, 3), ("1 epoch", 6), (0, 0)])
def test_matching_parameters_stay_as_they_are_at_first(model, batches, length, first):
    steps = changed_steps(model, batches, FreezeGradients("weight$", length))
    assert steps == {
        "linear.weight": list(range(first, 12)),
        "linear.bias": list(range(12)),
    }


def test_iterations_count_from_the_start_of_training_not_of_a_resumed_run(model, batches):
    weight = model.linear.weight.detach().clone()
    trainer = SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.1))
    trainer.register_hooks([FreezeGradients("weight", 3)])
    trainer.train(3, 4)
    assert not torch.equal(model.linear.weight, weight)


@pytest.mark.usefixtures("one_rank")
def test_names_are_those_of_the_model_inside_ddp(model, batches):
    wrapped = DistributedDataParallel(model)
    steps = changed_steps(model, batches, FreezeGradients(r"^linear\.bias", 3), wrapped)
    assert steps["linear.bias"] == list(range(3, 12))


def test_names_are_those_without_wrappers(model, batches):
    plain = changed_steps(copy.deepcopy(model), batches, FreezeGradients(r"^linear\.bias", 3))
    model.linear = nn.DataParallel(model.linear)
    steps = changed_steps(model, batches, FreezeGradients(r"^linear\.bias", 3))
    assert [*steps.values()] == [*plain.values()]


def test_a_pattern_that_matches_nothing_is_an_error_with_the_close_names(model, batches):
    with pytest.raises(ConfigError, match=r"'linaer' matches no parameter; did you mean linear"):
        changed_steps(model, batches, FreezeGradients("linaer", 3))
    with pytest.raises(ConfigError, match="'backbone' matches no parameter; there are: linear"):
        changed_steps(model, batches, FreezeGradients("backbone", 3))


def test_a_length_that_is_none_is_refused_at_once():
    with pytest.raises(ValueError, match="iterations or '2 epoch', got 'soon'"):
        FreezeGradients("weight", "soon")


def test_a_pattern_that_is_no_regular_expression_is_refused():
    with pytest.raises(ValueError, match=r"'\(' is not a regular expression: missing \)"):
        FreezeGradients("(", 3)
