import decimal
import fractions
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from engine.events.media import as_samples
from engine.events.scalar import as_scalar, fetch, is_deferred


def sharded(tensor: torch.Tensor) -> torch.Tensor:
    return distribute_tensor(tensor, init_device_mesh("cpu", (1,)), [Shard(0)])


@pytest.mark.parametrize(
    "value",
    [
        2,
        2.0,
        fractions.Fraction(2),
        np.float16(2),
        np.float32(2),
        np.float64(2),
        np.int8(2),
        np.uint64(2),
        np.array(2),
        np.array(2.0, dtype=np.float32),
        torch.tensor(2),
        torch.tensor(2, dtype=torch.uint8),
        torch.tensor(2.0, dtype=torch.float64),
        torch.tensor(2.0, dtype=torch.bfloat16),
        torch.tensor([2.0], dtype=torch.float16),
        torch.tensor([[[2.0]]]),
        torch.tensor(2.0, requires_grad=True),
        torch.nn.Parameter(torch.tensor([2.0])),
        torch.tensor(1.0, requires_grad=True) * 2,
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_every_kind_of_one_number_becomes_a_float(value):
    number = as_scalar("acc", value)
    assert type(number) is float
    assert number == 2.0


@pytest.mark.parametrize("value", [True, np.bool_(True), np.array(True), torch.tensor(True)])
def test_true_is_one(value):
    assert as_scalar("acc", value) == 1.0


@pytest.mark.parametrize(
    "value",
    [
        None,
        "2.0",
        b"2",
        [2.0],
        (2.0,),
        {"acc": 2.0},
        2 + 0j,
        decimal.Decimal(2),
        np.array([2.0]),
        np.array([1.0, 2.0]),
        np.array("2.0"),
        np.complex64(2),
        np.datetime64(2, "s"),
        object(),
        float,
    ],
    ids=repr,
)
def test_what_is_not_a_number_is_refused_by_the_name_of_its_metric(value):
    with pytest.raises(TypeError, match=r"metric 'val/acc' must be .* got \w+"):
        as_scalar("val/acc", value)


@pytest.mark.parametrize("shape", [(2,), (0,), (1, 2), (3, 3)])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_tensor_of_several_or_no_elements_is_refused_on_any_device(shape, device):
    with pytest.raises(ValueError, match="metric 'val/acc' must be one real number, got a tensor"):
        as_scalar("val/acc", torch.ones(shape, device=device))


def test_a_complex_tensor_is_refused():
    with pytest.raises(ValueError, match=r"metric 'val/acc' .* torch.complex64"):
        as_scalar("val/acc", torch.tensor(1j))


@pytest.mark.usefixtures("one_rank")
def test_of_what_is_sharded_the_whole_is_wanted():
    weights = sharded(torch.ones(4))
    with pytest.raises(ValueError, match=r"metric 'norm' is sharded, .* full_tensor\(\)"):
        as_scalar("norm", weights.norm())
    with pytest.raises(ValueError, match=r"histogram 'weights' is sharded, .* full_tensor\(\)"):
        as_samples("weights", weights)
    assert as_scalar("norm", weights.norm().full_tensor()) == 2.0
    assert as_scalar("norm", weights.norm().redistribute(placements=[Replicate()])) == 2.0


def test_an_error_message_stays_short_for_a_long_value():
    with pytest.raises(TypeError) as error:
        as_scalar("acc", ["many words"] * 10_000)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_numbers(value):
    assert str(as_scalar("loss", torch.tensor(value))) == str(value)
    assert str(as_scalar("loss", np.float32(value))) == str(value)


def test_only_tensors_off_the_cpu_wait():
    assert is_deferred(torch.ones((), device="meta"))  # the one other device there always is
    assert not is_deferred(torch.ones(()))
    assert not is_deferred(1.0)


@pytest.mark.usefixtures("on_accelerator")
def test_a_tensor_on_an_accelerator_is_copied_without_its_graph_and_not_read(operations):
    weight = torch.tensor([3.0], requires_grad=True)
    loss = weight * 2
    with operations:
        kept = as_scalar("loss", loss)
    with torch.no_grad():
        loss.fill_(-1)
    assert operations.conversions == 0
    assert isinstance(kept, torch.Tensor)
    assert kept.shape == ()
    assert not kept.requires_grad
    assert kept.item() == 6.0


NUMBERS = st.one_of(
    st.floats(width=32).map(torch.tensor),
    st.floats().map(lambda value: torch.tensor(value, dtype=torch.float64)),
    st.floats(width=16).map(lambda value: torch.tensor(value, dtype=torch.float16)),
    st.integers(-(2**62), 2**62).map(torch.tensor),
    st.booleans().map(torch.tensor),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(NUMBERS, max_size=20))
def test_fetch_gives_the_number_of_each_tensor_in_their_order(tensors):
    numbers = fetch(tensors)
    assert all(type(number) is float for number in numbers)
    assert list(map(str, numbers)) == [str(float(tensor.item())) for tensor in tensors]


def test_fetch_makes_one_transfer_for_all_tensors_of_a_dtype(operations):
    losses = [torch.tensor(float(i)) for i in range(100)]
    counts = [torch.tensor(i) for i in range(100)]
    with operations:
        assert fetch([*losses, *counts]) == [*map(float, range(100)), *map(float, range(100))]
    assert operations.conversions == 0
    assert operations.transfers == 2
