"""How large a model is: parameters, FLOPs, activations, and which parameters train.

Wherever `inputs` are asked for, they are what the model is called with: a tuple is its arguments,
anything else (a tensor, a dict, a list) its only one. FLOPs are counted as fvcore does, a
multiply-add as one.
"""

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from types import ModuleType
from typing import Any

import torch
from tabulate import tabulate
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from engine.utils.wrapping import unwrap


def model_summary(model: nn.Module, inputs: Any) -> str:
    """One line: parameters, and FLOPs and activations of a forward pass in eval mode."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    flops = _count_operators(FlopCountAnalysis, model, inputs)
    activations = _count_operators(ActivationCountAnalysis, model, inputs)
    return (
        f"parameters {_short(parameters)} | "
        f"FLOPs {_short(flops.total())}, {_short(flops['conv'])} in convolutions | "
        f"activations {_short(activations.total())}, {_short(activations['conv'])} in convolutions"
    )


def parameter_count(model: nn.Module) -> dict[str, int]:
    """Elements in each parameter and each sub-module, by name; '' is the whole model."""
    return _fvcore_nn().parameter_count(model)


def parameter_count_table(model: nn.Module, max_depth: int = 3) -> str:
    """`parameter_count` as a table, down to `max_depth` levels of names."""
    return _fvcore_nn().parameter_count_table(model, max_depth)


def parameter_status_table(model: nn.Module, max_depth: int = 2) -> str:
    """How many parameters train and how many are frozen, for each sub-module."""
    counts: dict[str, Counter[bool]] = {}
    for name, parameter in model.named_parameters():
        modules = name.split(".")[:-1]
        for depth in range(min(len(modules), max_depth) + 1):
            row = counts.setdefault(".".join(modules[:depth]), Counter())
            row[parameter.requires_grad] += parameter.numel()
    rows = []
    for name, row in counts.items():
        total = row.total()
        shares = (f"{row[kind]:,} ({row[kind] / max(total, 1):.1%})" for kind in (True, False))
        rows.append((name or "(model)", f"{total:,}", *shares))
    headers = ("module", "parameters", "trainable", "frozen")
    return tabulate(rows, headers, tablefmt="pipe", colalign=("left", "right", "right", "right"))


def find_unused_parameters(model: nn.Module, inputs: Any) -> set[str]:
    """Names of the trainable parameters that get no gradient from what the model returns.

    The model runs in the mode it is in; it must return losses, or anything differentiable. Its
    gradients, its buffers and the random state are left as they were.
    """
    model = unwrap(model)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with _left_as_it_was(model), torch.enable_grad():
        outputs = tree_leaves(model(*_arguments(inputs)))
        sums = [out.sum() for out in outputs if torch.is_tensor(out) and out.requires_grad]
        if not sums:
            raise ValueError(
                "the model returned nothing that requires a gradient; "
                "call model.train() first if it returns losses only then"
            )
        gradients = torch.autograd.grad(sums, list(trainable.values()), allow_unused=True)
    return {name for name, gradient in zip(trainable, gradients, strict=True) if gradient is None}


def flop_count(model: nn.Module, inputs: Any) -> int:
    """FLOPs of one forward pass in eval mode."""
    return _count_operators(FlopCountAnalysis, model, inputs).total()


def flop_count_table(model: nn.Module, inputs: Any, max_depth: int = 3) -> str:
    """Parameters, FLOPs and activations of each sub-module in a forward pass in eval mode."""
    with _counting(model):
        flops = _quietly(FlopCountAnalysis(model, inputs))
        activations = _quietly(ActivationCountAnalysis(model, inputs))
        return _fvcore_nn().flop_count_table(flops, max_depth, activations)


def flop_count_operators(model: nn.Module, inputs: Any) -> dict[str, float]:
    """GFLOPs of one forward pass in eval mode, by operator."""
    counts = _count_operators(FlopCountAnalysis, model, inputs)
    return {name: count / 1e9 for name, count in counts.items()}


def activation_count_operators(model: nn.Module, inputs: Any) -> dict[str, float]:
    """Millions of activations in one forward pass in eval mode, by operator."""
    counts = _count_operators(ActivationCountAnalysis, model, inputs)
    return {name: count / 1e6 for name, count in counts.items()}


def FlopCountAnalysis(model: nn.Module, inputs: Any) -> Any:
    """fvcore's FlopCountAnalysis, for any inputs and outputs, attention included.

    It runs the model when first asked for a number, in the mode that the model is in then.
    """
    analysis = _fvcore_nn().FlopCountAnalysis(*_traceable(model, inputs))
    return analysis.set_op_handle(_ATTENTION, _attention_flops).tracer_warnings("none")


def ActivationCountAnalysis(model: nn.Module, inputs: Any) -> Any:
    """fvcore's ActivationCountAnalysis, under the same terms."""
    nn_ = _fvcore_nn()
    analysis = nn_.ActivationCountAnalysis(*_traceable(model, inputs))
    return analysis.set_op_handle(
        _ATTENTION, nn_.jit_handles.generic_activation_jit()
    ).tracer_warnings("none")


_ATTENTION = "aten::scaled_dot_product_attention"


def _attention_flops(inputs: list[Any], outputs: list[Any]) -> int:
    query, key, value = (tensor.type().sizes() for tensor in inputs[:3])
    return prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _count_operators(
    analyse: Callable[[nn.Module, Any], Any], model: nn.Module, inputs: Any
) -> Counter[str]:
    with _counting(model):
        counts = _quietly(analyse(model, inputs)).by_operator()
        return Counter({name: int(count) for name, count in counts.items()})


@contextmanager
def _counting(model: nn.Module) -> Iterator[None]:
    """Meanwhile the model is in eval mode, and counts come out right."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused operators would count as nothing
    try:
        with _left_as_it_was(model):
            model.eval()
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


def _quietly(analysis: Any) -> Any:
    return analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)


def _traceable(model: nn.Module, inputs: Any) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model with tensors in and tensors out, the one form that torch.jit can trace."""
    model = unwrap(model)
    leaves, structure = tree_flatten(_arguments(inputs))

    def forward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        remaining = iter(tensors)
        filled = [next(remaining) if torch.is_tensor(leaf) else leaf for leaf in leaves]
        outputs = tree_leaves(model.forward(*tree_unflatten(filled, structure)))
        return tuple(leaf for leaf in outputs if torch.is_tensor(leaf))

    # A shallow copy rather than a wrapper: sub-modules keep their names in the tables.
    traceable = copy.copy(model)
    traceable.forward = forward
    return traceable, tuple(leaf for leaf in leaves if torch.is_tensor(leaf))


def _arguments(inputs: Any) -> tuple[Any, ...]:
    return inputs if isinstance(inputs, tuple) else (inputs,)


@contextmanager
def _left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Afterwards, modes of all modules, buffers and random state are the ones from before."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {parameter.get_device() for parameter in model.parameters() if parameter.is_cuda}
    try:
        with torch.random.fork_rng(devices=sorted(devices)):
            yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _fvcore_nn() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is built with torch.jit.script, which is deprecated
        import fvcore.nn

    return fvcore.nn


def _short(number: float) -> str:
    """A number with three digits and a unit: 1.23 M."""
    for unit in ("", " K", " M", " G"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} T"
