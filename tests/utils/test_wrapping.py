from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

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


def test_parts_whose_activations_are_computed_anew_have_plain_names():
    model = nn.Sequential(checkpoint_wrapper(nn.Linear(1, 1)))
    assert next(name for name, _ in model.named_parameters()) != "0.weight"
    names = [plain_names(model)(name) for name, _ in model.named_parameters()]
    assert names == [*model.state_dict()] == ["0.weight", "0.bias"]
