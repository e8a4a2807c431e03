import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

from engine.parallel.ddp import _IS_KNOWN, create_ddp_model
from engine.parallel.strategy import no_gradient_sync


def is_active() -> bool:
    return nn.parallel.DistributedDataParallel._get_active_ddp_module() is not None


class TellsWhoIsActive(nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)

    def forward(self, x):
        active = nn.parallel.DistributedDataParallel._get_active_ddp_module()
        return active is self.wrapped()


def order_of_gradients(**options) -> list[int]:
    """Which layers' gradients are sent in a later step, in their order."""
    model = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(4)])
    numbers = {layer.weight.data_ptr(): number for number, layer in enumerate(model)}
    wrapped = create_ddp_model(model, bucket_cap_mb=1e-6, **options)
    sent: list[int] = []

    def note(state, bucket):
        sent.extend(numbers[parameter.data_ptr()] for parameter in bucket.parameters())
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    wrapped.register_comm_hook(None, note)
    for _ in range(3):
        sent.clear()
        wrapped(torch.ones(1, 4)).sum().backward()
    return sent


def work(rank: int, folder: Path) -> dict:
    """The mean gradient over two ranks, which see the inputs 1 and 3, plain and compressed."""
    seen = {}
    for name, options in {
        "plain": {},
        "fp16": {"compression": "fp16"},
        "detectron2's fp16": {"fp16_compression": True},
        "option": {"find_unused_parameters": True, "gradient_as_bucket_view": False},
    }.items():
        torch.manual_seed(rank)  # DDP gives all ranks the weights of rank 0
        model = create_ddp_model(nn.Linear(1, 1, bias=False), **options)
        model(torch.tensor([[1.0 + 2 * rank]])).sum().backward()
        seen[f"{name} order is settled"] = model._has_rebuilt_buckets
        seen[name] = model.module.weight.item(), model.module.weight.grad.item()
        model.zero_grad()
        model(torch.tensor([[1 / 3]])).sum().backward()
        seen[f"{name} third"] = model.module.weight.grad.item()
        seen[f"{name} copies gradients"] = not model.gradient_as_bucket_view
        seen[f"{name} type"] = type(model).__name__, model.find_unused_parameters
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        model(torch.tensor([[1.0]]))
    seen["labels"] = [event.key for event in profiler.key_averages()]
    module = TellsWhoIsActive()
    module.wrapped = weakref.ref(active := create_ddp_model(module))
    seen["is active"] = [active(torch.ones(1, 1)), is_active(), active(None), is_active()]
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        module.wrapped = weakref.ref(with_reducer_in_python := create_ddp_model(module))
        seen["is active with a reducer in Python"] = with_reducer_in_python(torch.ones(1, 1))
    compiled = torch.compile(create_ddp_model(nn.Linear(1, 1, bias=False)), backend="eager")
    compiled(torch.tensor([[1.0 + 2 * rank]])).sum().backward()
    seen["compiled"] = compiled.module.weight.grad.item()
    static = create_ddp_model(nn.Linear(1, 1, bias=False), static_graph=True)
    with no_gradient_sync(static):
        static(torch.tensor([[1.0 + 2 * rank]])).sum().backward()
    static(torch.tensor([[1.0 + 2 * rank]])).sum().backward()
    seen["two passes of a static graph"] = static.module.weight.grad.item()
    for option in ("gradient_as_bucket_view", "find_unused_parameters", "static_graph"):
        seen[f"order with {option}"] = order_of_gradients(**{option: True})
    try:
        create_ddp_model(nn.Linear(1, 1), compression="bf16")
    except ValueError as error:
        seen["bf16"] = f"{type(error).__name__}: {error}"
    for are_cleared in (False, True):
        model = create_ddp_model(nn.ModuleDict({"used": nn.Linear(1, 1), "idle": nn.Linear(1, 1)}))
        model.module.forward = lambda x, module=model.module: module["used"](x)
        model(torch.ones(1, 1)).sum().backward()
        if are_cleared:
            model.zero_grad()
        try:
            model(torch.ones(1, 1))
        except RuntimeError as error:
            seen["cleared" if are_cleared else "unused"] = str(error)
    return seen


def test_alone_it_is_the_model_itself():
    model = nn.Linear(1, 1)
    assert create_ddp_model(model, compression="fp16", broadcast_buffers=False) is model


def test_an_unknown_compression_is_refused():
    with pytest.raises(ValueError, match=r"'fp61', not one of none, fp16, bf16; did you mean fp16"):
        create_ddp_model(nn.Linear(1, 1), compression="fp61")


@pytest.mark.slow
def test_two_processes_on_the_cpu_share_weights_and_gradients(processes):
    (weight, gradient), other = (process["plain"] for process in processes)
    assert [weight, gradient] == other
    assert gradient == 2.0  # the mean of 1 and 3
    assert processes[0]["plain type"] == ["DistributedDataParallel", False]


@pytest.mark.slow
def test_gradients_may_be_sent_as_float16(processes):
    assert [process["fp16"][1] for process in processes] == [2.0, 2.0]
    assert [process["fp16 third"] for process in processes] == [0.333251953125] * 2
    assert processes[0]["detectron2's fp16 third"] == processes[0]["fp16 third"]
    assert processes[0]["plain third"] == pytest.approx(1 / 3, abs=1e-7)


@pytest.mark.slow
def test_gradients_of_the_cpu_cannot_be_sent_as_bfloat16(processes):
    assert processes[0]["bf16"].startswith("StrategyError: PARALLEL.DDP.COMPRESSION is 'bf16'")
    assert "use fp16 or none" in processes[0]["bf16"]


@pytest.mark.slow
def test_parameters_without_a_gradient_are_named_where_that_can_be_known(processes):
    for process in processes:
        assert "no gradient in the last step: idle.weight, idle.bias. Use" in process["unused"]
        assert "(which ones cannot be told, as" in process["cleared"]


def test_further_arguments_are_those_of_ddp(processes):
    assert processes[0]["option type"] == ["DistributedDataParallel", True]
    assert processes[0]["option copies gradients"]


@pytest.mark.slow
def test_a_profiler_sees_its_forward_pass(processes):
    assert "DistributedDataParallel.forward" in processes[0]["labels"]


def test_a_compiler_can_tell_which_model_is_in_its_forward_pass(processes):
    assert processes[0]["is active"] == [True, False, True, False]
    assert not processes[0]["is active with a reducer in Python"]  # as in torch


def test_it_can_be_compiled(processes):
    assert [seen["compiled"] for seen in processes] == [2.0, 2.0]


def test_its_forward_pass_is_the_one_that_torch_has():
    assert _IS_KNOWN  # else it is labelled always


@pytest.mark.slow
def test_gradients_are_not_copied_unless_asked_for(processes):
    assert not processes[0]["plain copies gradients"]


def test_the_order_of_gradients_is_that_of_the_first_step(processes):
    assert processes[0]["plain order is settled"]
    assert not processes[0]["option order is settled"]  # torch never changes that one


def test_a_static_graph_can_be_run_twice_in_a_step(processes):
    assert [seen["two passes of a static graph"] for seen in processes] == [4.0, 4.0]


@pytest.mark.parametrize(
    "option", ["gradient_as_bucket_view", "find_unused_parameters", "static_graph"]
)
def test_gradients_that_come_first_are_sent_first(processes, option):
    assert processes[0][f"order with {option}"] == [3, 2, 1, 0]
