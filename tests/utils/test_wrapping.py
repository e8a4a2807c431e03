from torch import nn

from engine.utils.wrapping import plain_names, unwrap, wrapped_names


def test_the_model_inside_is_found():
    model = nn.Linear(1, 1)
    assert unwrap(nn.DataParallel(model)) is model
    assert unwrap(model) is model


def test_names_of_parts_are_those_they_have_without_wrappers():
    model = nn.ModuleDict({"module": nn.DataParallel(nn.Sequential(nn.DataParallel(nn.ReLU())))})
    names = ["module.module.0.module.weight", "module.module.0.module.", "other.module.bias"]
    plain = ["module.0.weight", "module.0.", "other.module.bias"]
    assert [*map(plain_names(model), names)] == plain
    assert [*map(wrapped_names(model, names), plain)] == names
