import torch

from engine.checkpoint import find_averages


def test_averages_are_found_whatever_the_hook_and_the_trainer_are_called():
    average = {"weight": torch.ones(1)}
    hooks = {
        "MyEMA": {"average": average, "count": 3},
        "Other": {"waited": 1},
        "New": {"average": {}},
    }
    checkpoint = {"model": {"weight": torch.zeros(1)}, "iteration": 3, "runner": {"hooks": hooks}}
    assert find_averages(checkpoint) == [average]
    assert find_averages({"model": {}}) == []
