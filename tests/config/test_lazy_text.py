import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from engine.config import LazyCall
from engine.config.lazy_text import call_text, target_name, to_plain


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (nn.Linear, "torch.nn.Linear"),
        (torch.optim.AdamW, "torch.optim.AdamW"),
        (dict, "builtins.dict"),
        (dict.fromkeys, None),
        (lambda: 5, None),
    ],
)
def test_the_shortest_name_that_finds_the_same_object(target, name):
    assert target_name(target) == name


def test_interpolations_and_nested_targets_are_kept():
    cfg = OmegaConf.create({"a": 1, "b": "${a}", "c": [LazyCall(nn.ReLU)(inplace=True)]})
    assert to_plain(cfg) == {
        "a": 1,
        "b": "${a}",
        "c": [{"_target_": "torch.nn.ReLU", "inplace": True}],
    }


def test_every_value_that_yaml_cannot_hold_is_named():
    cfg = LazyCall(dict)(a=torch.float16, b=[nn.ReLU])
    with pytest.raises(ValueError, match=r"(?s)a: torch.float16.*b.0: <class"):
        to_plain(cfg)


def test_long_calls_are_broken_an_argument_a_line():
    tree = {
        "_target_": "package.Model",
        "names": ["a" * 30] * 2,
        "inner": {"_target_": "f", "x": 1},
    }
    assert call_text(tree) == (
        f"package.Model(\n    names=['{'a' * 30}', '{'a' * 30}'],\n    inner=f(x=1),\n)"
    )


def test_values_are_written_as_python_writes_them():
    assert (
        call_text({"a": [1, "x", None], "b": nn.ReLU})
        == "{'a': [1, 'x', None], 'b': torch.nn.ReLU}"
    )
