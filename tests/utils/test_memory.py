import logging

import pytest
import torch

from engine.utils.memory import retry_if_cuda_oom


class OnGpu(torch.Tensor):
    """Stands for a tensor on a GPU, which the test machine lacks: `cpu()` gives another tensor."""

    def cpu(self):
        return self.as_subclass(torch.Tensor).clone()


def fails(times):
    """A function that runs out of memory so many times, then returns its arguments."""
    calls = []

    def function(*args, **kwargs):
        calls.append(args)
        if len(calls) <= times:
            raise torch.cuda.OutOfMemoryError("out of memory")
        return args, kwargs

    return function


@pytest.mark.parametrize("times", [0, 1])
def test_the_arguments_stay_where_they_are_while_it_fits(times):
    tensor = torch.zeros(2).as_subclass(OnGpu)
    args, kwargs = retry_if_cuda_oom(fails(times))(tensor, 3, mask=tensor)
    assert args == (tensor, 3)
    assert kwargs["mask"] is tensor


def test_at_last_the_arguments_move_to_the_cpu(caplog):
    tensor = torch.zeros(2).as_subclass(OnGpu)
    with caplog.at_level(logging.INFO):
        args, kwargs = retry_if_cuda_oom(fails(2))(tensor, 3, mask=tensor)
    assert [type(args[0]), args[1], type(kwargs["mask"])] == [torch.Tensor, 3, torch.Tensor]
    assert "running it on the CPU" in caplog.text


def test_out_of_memory_on_the_cpu_too_is_an_error():
    with pytest.raises(torch.cuda.OutOfMemoryError):
        retry_if_cuda_oom(fails(3))()


def test_other_errors_are_not_tried_again():
    calls = []

    def function():
        calls.append(1)
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        retry_if_cuda_oom(function)()
    assert len(calls) == 1
