import subprocess
import sys
from dataclasses import dataclass

import pytest
from omegaconf import OmegaConf
from torch import nn

from engine.config import LazyCall, instantiate


@dataclass
class Size:
    width: int = 4
    depth: int = 2


def layer_class(name):
    return getattr(nn, name)


def test_a_call_is_made_with_its_arguments_built_first():
    cfg = LazyCall(nn.TransformerEncoder)(
        encoder_layer=LazyCall(nn.TransformerEncoderLayer)(d_model=8, nhead=1, batch_first=True),
        num_layers=2,
        enable_nested_tensor=False,
    )
    cfg.encoder_layer.d_model = 16
    model = instantiate(cfg)
    assert len(model.layers) == 2
    assert model.layers[0].linear1.in_features == 16


def test_lists_are_built_item_by_item():
    cfg = LazyCall(nn.ModuleList)(modules=[LazyCall(nn.ReLU)(), LazyCall(nn.Tanh)()])
    assert [type(module) for module in instantiate(cfg)] == [nn.ReLU, nn.Tanh]
    assert [type(module) for module in instantiate(cfg.modules)] == [nn.ReLU, nn.Tanh]


def test_tuples_are_built_too_and_stay_tuples():
    cfg = LazyCall(dict)(parts=(LazyCall(nn.ReLU)(), LazyCall(nn.Tanh)()), betas=(0.9, 0.999))
    built = instantiate(cfg)
    assert [type(part) for part in built["parts"]] == [nn.ReLU, nn.Tanh]
    assert built["betas"] == (0.9, 0.999)
    assert type(built["betas"]) is type(built["parts"]) is tuple


def test_a_target_may_be_a_name_or_be_built_itself():
    assert instantiate({"_target_": "torch.nn.ReLU", "inplace": True}).inplace
    make = LazyCall(LazyCall(layer_class)(name="ReLU"))
    assert instantiate(make(inplace=True)).inplace


def test_values_refer_to_one_another():
    cfg = OmegaConf.create({"width": 5, "model": LazyCall(dict)(width="${width}")})
    assert instantiate(cfg.model) == {"width": 5}


def test_a_dataclass_node_becomes_the_dataclass():
    assert instantiate(OmegaConf.structured(Size(width=8))) == Size(8, 2)
    assert instantiate(LazyCall(Size)(depth=1)) == Size(4, 1)


@pytest.mark.parametrize("value", [5, "text", None, {"a": 1}, OmegaConf.create({"a": 1})])
def test_anything_else_is_returned_as_it_is(value):
    assert instantiate(value) is value


def test_a_target_that_is_no_callable_is_refused():
    with pytest.raises(TypeError, match=r"_target_ must be a class.*got 5"):
        instantiate({"_target_": 5})


def test_an_unknown_target_names_the_close_one():
    with pytest.raises(ImportError, match="did you mean Linear"):
        instantiate({"_target_": "torch.nn.Linera"})


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes on exceptions came with 3.11")
def test_a_failed_call_says_what_was_being_built():
    with pytest.raises(TypeError) as error:
        instantiate(LazyCall(nn.Linear)(width=3))
    assert "while building" in error.value.__notes__[0]
    assert "Linear" in error.value.__notes__[0]


def test_omegaconf_is_not_imported_until_it_is_used():
    code = "import sys, engine.config; assert 'omegaconf' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
