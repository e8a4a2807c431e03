from torch import nn

from engine.utils.wrapping import unwrap


def test_the_model_inside_is_found():
    model = nn.Linear(1, 1)
    assert unwrap(nn.DataParallel(model)) is model
    assert unwrap(model) is model
