import datetime
import enum
import io
import random
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from engine.checkpoint.plain import as_plain

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@given(VALUES)
def test_plain_values_stay_as_they_are_and_load(value):
    plain = as_plain(value, "value")
    assert plain == value
    assert through_a_file(plain) == value


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(-3), -3),
        (np.uint8(3), 3),
        (np.bool_(True), True),
        (np.complex128(1 + 2j), 1 + 2j),
        (np.str_("name"), "name"),
    ],
)
def test_numpy_scalars_become_python_ones_wherever_they_are(number, expected):
    state = {"best": [number, {"at": (number,)}]}
    loaded = through_a_file(as_plain(state, "hooks"))
    assert loaded == {"best": [expected, {"at": (expected,)}]}
    assert type(loaded["best"][0]) is type(loaded["best"][1]["at"][0]) is type(expected)


def test_numpy_numbers_as_keys_become_python_ones():
    (key,) = through_a_file(as_plain({np.int64(7): "seven"}, "counts"))
    assert (key, type(key)) == (7, int)


@pytest.mark.parametrize(
    "value",
    [torch.float16, torch.device("cpu"), torch.Size([2, 3]), 1 + 2j, -float("inf"), 2**200],
    ids=repr,
)
def test_what_torch_describes_tensors_with_is_plain(value):
    loaded = through_a_file(as_plain([value], "options"))
    assert loaded == [value]
    assert type(loaded[0]) is type(value)


def test_tensors_are_handed_on_without_a_copy():
    tensor = torch.zeros(3)
    assert as_plain({"a": [tensor]}, "state")["a"][0] is tensor


def test_states_of_random_generators_are_plain():
    states = {
        "python": random.getstate(),
        "numpy": np.random.default_rng(0).bit_generator.state,
        "torch": torch.get_rng_state(),
    }
    loaded = through_a_file(as_plain(states, "rng"))
    random.Random().setstate(loaded["python"])
    np.random.default_rng().bit_generator.state = loaded["numpy"]
    assert (loaded["python"], loaded["numpy"]) == (states["python"], states["numpy"])
    assert torch.equal(loaded["torch"], states["torch"])


@pytest.mark.parametrize("kind", [OrderedDict, lambda items: defaultdict(list, items)])
def test_other_kinds_of_dict_become_dicts(kind):
    loaded = through_a_file(as_plain(kind([("b", 1), ("a", [2])]), "state"))
    assert (type(loaded), list(loaded.items())) == (dict, [("b", 1), ("a", [2])])


def test_the_versions_in_the_state_of_a_module_are_kept():
    state = nn.Sequential(nn.BatchNorm1d(2)).state_dict()
    loaded = through_a_file(as_plain(state, "model"))
    assert loaded._metadata == state._metadata
    assert loaded._metadata["0"] == {"version": 2}


class Color(enum.IntEnum):
    RED = 1


class Custom:
    pass


class Tagged(torch.Tensor):
    pass


class Declared(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Path("out"), r"pathlib\.\w*Path"),
        (deque([1]), r"collections\.deque"),
        (Custom(), r"test_plain\.Custom"),
        (Color.RED, r"test_plain\.Color"),
        (torch.zeros(2).as_subclass(Tagged), r"test_plain\.Tagged"),
        (nn.LazyLinear(2).weight, r"torch\.nn\.parameter\.UninitializedParameter"),
        (np.zeros(2), r"numpy\.ndarray"),
        (np.longdouble(1), r"numpy\.longdouble"),
        (np.datetime64("2026-11-16"), r"numpy\.datetime64"),
        (datetime.timedelta(1), r"datetime\.timedelta"),
        (b"", r"builtins\.bytes"),  # torch loads others than the empty ones
        (len, r"builtins\.builtin_function_or_method"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_not_load_is_refused_and_its_place_is_named(value, kind):
    place = r"trainer\['hooks'\]\[1\]\['state'\] is a (\w+\.)*" + kind
    with pytest.raises(TypeError, match=place + r".*convert it in state_dict\(\)"):
        as_plain({"hooks": [{}, {"state": value}]}, "trainer")


@pytest.mark.parametrize("value", [set(), {1, 2}, {("a", 1)}, Counter(), Counter({3: 2})])
def test_sets_and_counters_stay_what_they_are(value):
    loaded = through_a_file(as_plain({"state": value}, "hooks"))["state"]
    assert (loaded, type(loaded)) == (value, type(value))


def test_a_type_that_was_declared_safe_is_plain():
    torch.serialization.add_safe_globals([Declared])
    state = {"mean": torch.ones(2).as_subclass(Declared)}
    assert type(through_a_file(as_plain(state, "state"))["mean"]) is Declared


def test_a_key_that_would_not_load_is_refused():
    with pytest.raises(TypeError, match=r"trainer\['files'\] is a pathlib"):
        as_plain({"files": {Path("a.txt"): 1}}, "trainer")
