import pytest
import torch

from engine.parallel.device import choose_device


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


def test_each_process_of_a_machine_takes_the_accelerator_of_its_local_rank(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # the machine that tests lack
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device() == choose_device("cuda") == torch.device("cuda", 3)
    assert choose_device("cuda:1") == torch.device("cuda", 1)


def test_a_name_that_torch_does_not_know_is_refused():
    with pytest.raises(RuntimeError, match="gpu"):
        choose_device("gpu")
