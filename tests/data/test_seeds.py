import random

import numpy as np
import torch

from engine.data.seeds import agree_on_seed, derive_seed, sample_generator, seeded_global_rngs


def test_the_same_place_has_the_same_seed_on_every_machine():
    assert derive_seed(0, 1) == 10451216379200822465
    assert derive_seed(42, 7) == derive_seed(42, 7)


def test_places_differ_in_the_32_bits_that_torch_uses():
    seeds = {derive_seed(seed, place) % 2**32 for seed in range(10) for place in range(100)}
    assert len(seeds) == 1000


def test_a_seed_is_kept_and_none_or_a_negative_one_means_random():
    assert agree_on_seed(5) == 5
    assert agree_on_seed(0) == 0
    assert len({agree_on_seed(None), agree_on_seed(-1), agree_on_seed(None)}) == 3


def test_outside_a_loader_a_sample_generator_is_random():
    assert sample_generator().initial_seed() != sample_generator().initial_seed()


def draw():
    return random.random(), np.random.rand(), torch.rand(()).item()


def test_global_generators_are_seeded_inside_and_restored_outside():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with seeded_global_rngs(3):
        first = draw()
    with seeded_global_rngs(3):
        assert draw() == first
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == before
