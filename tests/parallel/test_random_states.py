"""The random states of a single rank; those of two are in tests/test_stop_decision.py."""

import logging

import torch

from engine.parallel.random_states import restore_random_states
from engine.utils.random_state import get_random_state


def test_one_process_gets_its_own_state_back():
    states = [get_random_state()]
    first = torch.rand(3)
    restore_random_states(states)
    assert torch.equal(torch.rand(3), first)


def test_another_number_of_processes_is_told_that_it_is_not_exact(log):
    states = [get_random_state()]
    first = torch.rand(3)
    restore_random_states(states * 2)
    assert torch.equal(torch.rand(3), first)
    (record,) = log.records
    assert record.levelno == logging.WARNING
    assert "Random states of 2 processes were saved and there are 1" in record.message


def test_a_rank_without_a_saved_state_keeps_its_seed(log):
    torch.manual_seed(5)
    restore_random_states([])
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), drawn)
    assert "Random states of 0 processes" in log.text
