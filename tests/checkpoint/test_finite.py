import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from engine.checkpoint.finite import first_nonfinite, infinite_constants, is_finite

BAD = torch.tensor([1.0, math.nan])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_one_bad_element_is_found(value, dtype):
    tensor = torch.ones(1000, dtype=dtype)
    assert is_finite(tensor)
    tensor[777] = value
    assert not is_finite(tensor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_sum_that_overflows_is_no_alarm(dtype):
    assert is_finite(torch.full((1000,), torch.finfo(dtype).max, dtype=dtype))


@pytest.mark.parametrize("value", [torch.tensor([1, 2]), torch.tensor([]), 3, "text", None])
def test_what_cannot_be_bad_is_fine(value):
    assert is_finite(value)


def test_the_first_bad_tensor_is_named():
    assert first_nonfinite({"model": {"a": torch.ones(1), "b": BAD}}) == "b"
    state = {"model": {}, "trainer": {"_trainer": {"optimizer": {"state": {0: {"exp_avg": BAD}}}}}}
    assert first_nonfinite(state) == "trainer['_trainer']['optimizer']['state'][0]['exp_avg']"


def test_what_is_neither_weight_nor_moment_may_be_bad():
    data = {"model": {"mask": BAD}, "trainer": {"storage": {"loss": BAD}}, "seen": BAD}
    assert first_nonfinite(data, unchecked={"mask"}) is None


class WithoutFloat64(TorchDispatchMode):
    """Refuses what a device without float64, such as that of a Mac, refuses."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            raise TypeError("this device has no float64")
        return result


def test_a_device_needs_no_float64():
    largest = torch.full((1000,), torch.finfo(torch.float32).max)
    with WithoutFloat64():
        assert is_finite(largest)
        assert not is_finite(BAD)


def test_what_is_infinite_and_not_trained_is_found_under_all_its_names():
    model = nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)})
    for part in model.values():
        part.register_parameter("mask", nn.Parameter(BAD, requires_grad=False))
        part.register_buffer("bias_mask", BAD)
    model["b"].mask = model["a"].mask
    nn.init.constant_(model["a"].weight, math.inf)
    assert infinite_constants(model) == {"a.mask", "a.bias_mask", "b.mask", "b.bias_mask"}
