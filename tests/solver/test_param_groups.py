import pytest
import torch
from fvcore.common.param_scheduler import ConstantParamScheduler
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from engine.solver.lr_scheduler import LRMultiplier, WarmupParamScheduler
from engine.solver.param_groups import (
    get_default_optimizer_params,
    param_group_table,
    reduce_param_groups,
)
from engine.solver.param_rules import ParamRule


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 2)
        self.body = nn.Linear(2, 2)
        self.norm = nn.LayerNorm(2)
        self.head = nn.Linear(2, 3)


def options(model: nn.Module, groups: list[dict]) -> dict[str, dict]:
    """The options of each parameter by its name."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        names[parameter]: {key: value for key, value in group.items() if key != "params"}
        for group in groups
        for parameter in group["params"]
    }


def test_norm_bias_and_embedding_have_their_own_decay():
    model = Net()
    groups = get_default_optimizer_params(
        model,
        base_lr=0.1,
        weight_decay=0.01,
        weight_decay_norm=0.0,
        weight_decay_bias=0.002,
        weight_decay_embed=0.003,
        bias_lr_factor=2.0,
    )
    assert options(model, groups) == {
        "embed.weight": {"lr": 0.1, "weight_decay": 0.003},
        "body.weight": {"lr": 0.1, "weight_decay": 0.01},
        "body.bias": {"lr": 0.2, "weight_decay": 0.002},
        "norm.weight": {"lr": 0.1, "weight_decay": 0.0},
        "norm.bias": {"lr": 0.2, "weight_decay": 0.002},
        "head.weight": {"lr": 0.1, "weight_decay": 0.01},
        "head.bias": {"lr": 0.2, "weight_decay": 0.002},
    }
    assert len(groups) == 4


def test_what_is_none_is_left_to_the_optimizer():
    (group,) = get_default_optimizer_params(Net())
    assert [*group] == ["params"]


def test_parameters_of_equal_options_share_one_group():
    (group,) = get_default_optimizer_params(Net(), base_lr=0.1, weight_decay=0.01)
    assert len(group["params"]) == 7


def test_frozen_parameters_are_left_out_and_shared_ones_come_once():
    model = Net()
    model.body.requires_grad_(False)
    model.head.bias = model.norm.bias
    names = options(model, get_default_optimizer_params(model, base_lr=0.1))
    assert [*names] == ["embed.weight", "norm.weight", "norm.bias", "head.weight"]


def test_a_function_of_the_name_scales_the_lr_also_of_biases():
    model = Net()
    groups = get_default_optimizer_params(
        model,
        base_lr=0.1,
        bias_lr_factor=2.0,
        lr_factor_func=lambda name: 0.5 if name.startswith("body.") else 1.0,
    )
    lrs = {name: found["lr"] for name, found in options(model, groups).items()}
    assert lrs["body.weight"] == 0.05
    assert lrs["body.bias"] == 0.1
    assert lrs["head.bias"] == 0.2


def test_overrides_go_by_the_last_part_of_the_name():
    model = Net()
    groups = get_default_optimizer_params(
        model, base_lr=0.1, overrides={"bias": {"weight_decay": 0.0, "momentum": 0.5}}
    )
    found = options(model, groups)
    assert found["norm.bias"] == {"lr": 0.1, "weight_decay": 0.0, "momentum": 0.5}
    assert found["norm.weight"] == {"lr": 0.1}


def test_rules_multiply_what_the_types_gave():
    model = Net()
    rules = [
        ParamRule(match="head|norm", lr_mult=10.0, decay_mult=2.0),
        ParamRule(match="body", options={"lr": 1.0}),
    ]
    groups = get_default_optimizer_params(
        model, 0.1, weight_decay=0.01, weight_decay_norm=0.0, rules=rules
    )
    found = options(model, groups)
    assert found["head.weight"] == {"lr": 1.0, "weight_decay": 0.02}
    assert found["norm.weight"] == {"lr": 1.0, "weight_decay": 0.0}
    assert found["body.weight"] == {"lr": 1.0, "weight_decay": 0.01}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bias_lr_factor": 2.0}, "multiplier of 2.0 needs base_lr"),
        ({"lr_factor_func": lambda name: 0.5}, "needs base_lr"),
        ({"rules": [ParamRule(match="body", decay_mult=0.5)]}, "needs weight_decay"),
        ({"weight_decay_bias": 0.0, "overrides": {"bias": {}}}, "overrides has 'bias' beside"),
    ],
)
def test_contradictions_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        get_default_optimizer_params(Net(), **arguments)


@given(lrs=st.lists(st.sampled_from([0.1, 0.2, 0.3]), max_size=12))
def test_merging_keeps_every_parameter_with_its_options(lrs):
    groups = [
        {"params": [nn.Parameter(torch.zeros(1))], "lr": lr, "betas": [lr, 0.9]} for lr in lrs
    ]
    merged = reduce_param_groups(groups)
    assert len(merged) == len(set(lrs))
    lr_of = {parameter: group["lr"] for group in merged for parameter in group["params"]}
    assert [lr_of[group["params"][0]] for group in groups] == lrs
    assert sum(len(group["params"]) for group in merged) == len(lrs)


def test_merging_minds_neither_the_order_of_keys_nor_a_bare_parameter():
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    (merged,) = reduce_param_groups(
        [
            {"params": first, "lr": 1.0, "eps": 0.1},
            {"params": [second], "eps": 0.1, "lr": 1.0},
        ]
    )
    assert merged["lr"] == 1.0
    assert all(a is b for a, b in zip(merged["params"], [first, second], strict=True))


def test_of_a_parameter_in_two_groups_the_later_options_win():
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    groups = reduce_param_groups(
        [
            {"params": [first, second], "lr": 1.0, "weight_decay": 0.1},
            {"params": [second], "lr": 2.0},
        ]
    )
    options = [(group["lr"], group["weight_decay"], len(group["params"])) for group in groups]
    assert options == [(1.0, 0.1, 1), (2.0, 0.1, 1)]
    torch.optim.SGD(groups)


def test_the_table_shows_each_group_and_what_is_not_trained():
    model = Net()
    model.embed.requires_grad_(False)
    rules = [ParamRule(match="head", lr_mult=10.0, options={"momentum": 0.5})]
    groups = get_default_optimizer_params(model, 0.1, 0.01, weight_decay_norm=0.0, rules=rules)
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    LRMultiplier(
        optimizer, WarmupParamScheduler(ConstantParamScheduler(1.0), 0.001, 0.1), max_iter=10
    )
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in param_group_table(optimizer, model).splitlines()
    ]
    assert rows[0][:5] == ["group", "tensors", "parameters", "lr", "weight decay"]
    assert rows[2:] == [
        ["0", "2", "6", "0.1", "0.01", "momentum=0.9", "body.weight"],
        ["1", "2", "4", "0.1", "0", "momentum=0.9", "norm.weight"],
        ["2", "2", "9", "1", "0.01", "momentum=0.5", "head.weight"],
        ["not trained", "1", "6", "", "", "", "embed.weight"],
    ]
