import random

import numpy as np
import pytest
import torch

from engine.utils.random_state import get_random_state, seeded, set_random_state


def draw() -> list[float]:
    """Some numbers of each generator; the normal ones come in pairs, of which one is kept."""
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
        torch.rand(()).item(),
    ]


@pytest.fixture(autouse=True)
def _undisturbed():
    before = get_random_state()
    yield
    set_random_state(before)


@pytest.mark.parametrize("drawn_before", [0, 1, 700])
def test_what_was_drawn_is_drawn_again(tmp_path, drawn_before):
    for _ in range(drawn_before):
        draw()
    torch.save(get_random_state(), tmp_path / "state.pth")
    first = [draw() for _ in range(3)]
    set_random_state(torch.load(tmp_path / "state.pth", weights_only=True))
    assert [draw() for _ in range(3)] == first


def test_asking_for_the_state_draws_nothing():
    set_random_state(state := get_random_state())
    undisturbed = draw()
    set_random_state(state)
    for _ in range(3):
        get_random_state()
    assert draw() == undisturbed


def test_a_state_does_not_change_with_the_generators():
    state = get_random_state()
    first = draw()
    set_random_state(state)
    assert draw() == first


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_state_of_a_gpu_is_kept_too():
    torch.rand((), device="cuda")
    state = get_random_state()
    first = torch.rand((), device="cuda")
    set_random_state(state)
    assert torch.rand((), device="cuda") == first


def test_inside_a_seed_the_same_is_drawn_and_afterwards_what_would_have_been():
    state = get_random_state()
    expected = draw()
    set_random_state(state)
    with seeded(7):
        first = draw()
    with seeded(7):
        assert draw() == first
    assert draw() == expected
