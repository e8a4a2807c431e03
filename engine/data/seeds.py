"""Seeds that follow from where one is: randomness as a function of (seed, place)."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch

from engine.parallel.comm import shared_random_seed

_MASK = 2**64 - 1

sample_seed: ContextVar[int | None] = ContextVar("sample_seed", default=None)
"""The seed of the sample that is being read. It reaches mappers through any data set between."""


def derive_seed(seed: int, number: int) -> int:
    """An unsigned 64-bit seed for the `number`-th thing of a run seeded with `seed`.

    Neighbours get unrelated seeds, also in the low 32 bits, all that torch's CPU generator uses.
    """
    z = ((seed + 1) * 0x9E3779B97F4A7C15 + number) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def agree_on_seed(seed: int | None) -> int:
    """`seed` itself, or a random one that all ranks share where it is None or negative."""
    return shared_random_seed() if seed is None or seed < 0 else seed


def sample_generator() -> torch.Generator:
    """For the `__getitem__` of your own data set: a generator that belongs to the sample.

    What it draws follows from the run's seed and the sample's place in the run, as for a mapper's
    `generator`. Each call gives the same numbers again: take one for a sample. Where no loader is
    reading, it is seeded at random.
    """
    generator = torch.Generator()
    seed = sample_seed.get()
    if seed is None:
        generator.seed()
        return generator
    return generator.manual_seed(derive_seed(seed, -1))  # mappers use the indices, from 0 on


@contextmanager
def seeded_global_rngs(seed: int) -> Iterator[None]:
    """Seed `random`, `numpy.random` and torch's CPU generator for the body, restore them after."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        # Not torch.manual_seed: a forked worker must not touch accelerators.
        torch.default_generator.manual_seed(seed)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
