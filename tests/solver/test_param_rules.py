import pytest
import torch
from torch import nn

from engine.solver.param_rules import (
    ParamRule,
    freeze_parameters,
    iterate_parameters,
    parse_param_rules,
    settings_from_rules,
    warn_about_idle_rules,
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, groups=4)
        )
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=True)
        self.head.weight = self.embed.weight  # tied: one parameter, two names


def settings(rules: list[dict], model: nn.Module | None = None) -> dict[str, dict]:
    """What the rules set, by parameter, for those of which they set something."""
    parsed = parse_param_rules(rules)
    by_name = {
        named.name: settings_from_rules(parsed, named)
        for named in iterate_parameters(model or Net())
    }
    return {name: found for name, found in by_name.items() if found}


def test_a_pattern_is_searched_for_anywhere_in_the_name():
    assert [*settings([{"MATCH": "back", "LR_MULT": 0.1}])] == [
        "backbone.0.weight",
        "backbone.0.bias",
        "backbone.1.weight",
        "backbone.1.bias",
        "backbone.2.weight",
        "backbone.2.bias",
    ]
    assert [*settings([{"MATCH": r"^backbone\.[01]\.bias$", "LR_MULT": 0.1}])] == [
        "backbone.0.bias",
        "backbone.1.bias",
    ]


def test_names_are_those_without_wrappers():
    model = Net()
    model.backbone = nn.DataParallel(model.backbone)
    model.head = torch.compile(model.head, backend="eager")
    found = settings(
        [{"MATCH": r"^backbone\.0", "FREEZE": True}, {"MATCH": "^head.bias$", "lr": 1}], model
    )
    assert [*found] == ["backbone.0.weight", "backbone.0.bias", "head.bias"]


NORM = ["backbone.1.weight", "backbone.1.bias"]


@pytest.mark.parametrize(
    ("type_name", "names"),
    [
        ("norm", NORM),
        ("depthwise", ["backbone.2.weight", "backbone.2.bias"]),
        ("embedding", ["embed.weight"]),
        ("bias", ["backbone.0.bias", "backbone.1.bias", "backbone.2.bias", "head.bias"]),
        ("flat", ["backbone.0.bias", *NORM, "backbone.2.bias", "head.bias"]),
        ("Linear", ["head.bias"]),
        ("_BatchNorm", NORM),
    ],
)
def test_a_type_is_a_kind_of_parameter_or_a_class_of_its_module(type_name, names):
    assert [*settings([{"TYPE": type_name, "DECAY_MULT": 0.0}])] == names


def test_name_and_type_must_both_fit():
    rule = {"MATCH": "backbone", "TYPE": "bias", "LR_MULT": 2.0}
    assert [*settings([rule])] == ["backbone.0.bias", "backbone.1.bias", "backbone.2.bias"]


def test_a_later_rule_wins_in_what_both_set():
    found = settings(
        [
            {"MATCH": "backbone", "LR_MULT": 0.1, "DECAY_MULT": 0.5},
            {"TYPE": "norm", "DECAY_MULT": 0.0},
            {"MATCH": "0.bias", "LR_MULT": 2.0, "betas": [0.8, 0.9]},
        ]
    )
    assert found["backbone.0.weight"] == {"lr_mult": 0.1, "decay_mult": 0.5}
    assert found["backbone.1.weight"] == {"lr_mult": 0.1, "decay_mult": 0.0}
    assert found["backbone.0.bias"] == {"lr_mult": 2.0, "decay_mult": 0.5, "betas": [0.8, 0.9]}


def test_a_shared_parameter_is_seen_once_under_its_first_name():
    names = [named.name for named in iterate_parameters(Net())]
    assert names == [name for name, _ in Net().named_parameters()]
    assert "embed.weight" in names
    assert "head.weight" not in names


def test_freezing_stops_gradients_and_nothing_else():
    model = Net()
    freeze_parameters(model, parse_param_rules([{"MATCH": "backbone", "FREEZE": True}]))
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trainable == ["embed.weight", "head.bias"]


def test_training_a_part_only_is_freezing_all_and_then_not_that_part():
    model = Net()
    rules = [{"MATCH": "", "FREEZE": True}, {"MATCH": "head", "FREEZE": False}]
    freeze_parameters(model, parse_param_rules(rules))
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["head.bias"]


def test_a_rule_that_says_nothing_of_freezing_leaves_the_models_choice():
    model = Net()
    model.head.bias.requires_grad_(False)
    freeze_parameters(model, parse_param_rules([{"MATCH": "head", "LR_MULT": 2.0}]))
    assert not model.head.bias.requires_grad


@pytest.mark.parametrize(
    ("rule", "hint"),
    [
        ({"MATCH": "backbon3"}, "did you mean backbone"),
        ({"TYPE": "Linar"}, "did you mean Linear"),
        ({"TYPE": "norms"}, "did you mean norm"),
    ],
)
def test_a_rule_that_matches_nothing_is_reported_with_the_nearest_names(rule, hint, caplog):
    rules = parse_param_rules([{**rule, "LR_MULT": 0.1}, {"MATCH": "head", "LR_MULT": 0.1}])
    warn_about_idle_rules(Net(), rules)
    (record,) = caplog.records
    assert "matches no parameter" in record.getMessage()
    assert hint in record.getMessage()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"MATCH": "a", "LR_MUL": 0.1}, "unknown key LR_MUL .* did you mean LR_MULT"),
        ({"MATCH": "a", "lr_mult": 0.1}, "unknown key lr_mult .* did you mean LR_MULT"),
        ({"LR_MULT": 0.1}, "needs MATCH, TYPE or both"),
        ({"MATCH": "a"}, r"rule \{MATCH: a\} sets nothing"),
        ({"MATCH": "(", "LR_MULT": 0.1}, r"MATCH '\(' is not a regular expression"),
        ({"MATCH": 3, "LR_MULT": 0.1}, "MATCH 3 is not a regular expression"),
        ("backbone", r"a rule is like \{MATCH: .*, got 'backbone'"),
        ({"MATCH": "a", "LR_MULT": "fast"}, "LR_MULT must be a number from 0 up, got 'fast'"),
        ({"TYPE": "norm", "DECAY_MULT": -1}, "DECAY_MULT must be a number from 0 up, got -1"),
        ({"MATCH": "a", "FREEZE": "no"}, "FREEZE must be true or false, got 'no'"),
    ],
)
def test_bad_rules_are_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        parse_param_rules([rule])


def test_rules_can_be_made_in_python():
    named = next(iterate_parameters(nn.Linear(2, 2)))
    rule = ParamRule(type="Linear", lr_mult=0.5, options={"eps": 0.1})
    assert settings_from_rules([rule], named) == {"lr_mult": 0.5, "eps": 0.1}
