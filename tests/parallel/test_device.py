import pytest
import torch

from engine.parallel import comm
from engine.parallel.device import (
    BACKENDS,
    check_count,
    choose_device,
    find_accelerator,
    set_current_device,
)


@pytest.fixture
def four_gpus(monkeypatch):
    """A machine that tests lack; returns the devices that were made current."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    return chosen


def test_auto_is_a_device_that_this_machine_has():
    device = choose_device()
    assert torch.zeros(1, device=device).device.type == device.type


def test_a_named_device_is_that_device():
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(ValueError, match=f"has no device '{name}'; use 'auto'"):
        choose_device(name)


@pytest.mark.usefixtures("four_gpus")
def test_a_device_beyond_those_there_are_is_refused_with_their_number():
    with pytest.raises(ValueError, match=r"has 4 cuda device\(s\) and no 'cuda:4'"):
        choose_device("cuda:4")


def test_a_device_without_values_is_refused():
    with pytest.raises(ValueError, match="tensors on 'meta' have no values"):
        choose_device("meta")


@pytest.mark.usefixtures("four_gpus")
def test_each_process_of_a_machine_takes_the_accelerator_of_its_local_rank(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device() == choose_device("cuda") == torch.device("cuda", 3)
    assert choose_device("cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize("name", ["gpu", None])
def test_a_name_that_torch_does_not_know_is_refused(name):
    with pytest.raises(ValueError, match=f"{name!r} is no device; use 'auto', 'cuda'"):
        choose_device(name)


def test_each_process_sets_the_device_of_its_local_rank(four_gpus):
    assert BACKENDS[set_current_device(3)] == "nccl"
    assert four_gpus == [3]


def test_more_processes_than_devices_are_refused_with_both_numbers(four_gpus):
    check_count(4)
    with pytest.raises(ValueError, match="5 processes on this machine, which has 4 cuda device"):
        check_count(5)
    with pytest.raises(ValueError, match="has 4 cuda"):
        set_current_device(4)


def test_intels_devices_have_a_backend_of_their_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    assert BACKENDS[find_accelerator()] == "xccl"


@pytest.mark.skipif(find_accelerator() is not None, reason="this machine has an accelerator")
def test_without_accelerators_any_number_of_processes_shares_the_cpu():
    check_count(1000)
    assert BACKENDS[set_current_device(999)] == "gloo"


def test_one_process_takes_mps_and_several_do_not(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device() == torch.device("mps")
    monkeypatch.setattr(comm, "get_world_size", lambda: 2)
    assert choose_device() == torch.device("cpu")
    with pytest.raises(ValueError, match="2 processes cannot exchange tensors of 'mps'"):
        choose_device("mps")
