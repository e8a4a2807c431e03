"""What a save costs the training thread: the part of tools/benchmark.py on checkpoints."""

import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from engine.checkpoint import Checkpointer

MEGABYTES = 200


def measure_saving(rounds: int) -> dict[str, float]:
    """The stall of the loop per save of 200 MB over a plain copy of them, in CPU of its thread.

    The first save also asks the system for the memory of the copy, which later ones use again.
    """
    model = nn.ParameterList([torch.randn(1024, 1024) for _ in range(MEGABYTES // 4)])
    twin = [torch.empty_like(parameter) for parameter in model]

    def copy() -> None:
        for memory, parameter in zip(twin, model, strict=True):
            memory.copy_(parameter.detach())

    copies, saves, plain_saves = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        background = Checkpointer(model, folder, background=True)
        for _ in range(rounds + 1):
            copies.append(_cpu_seconds(copy))
            saves.append(_cpu_seconds(lambda: background.save("background")))
            background.wait()
            plain_saves.append(_cpu_seconds(lambda: torch.save(model, f"{folder}/plain")))
    copy_seconds = sum(copies[1:]) / rounds
    return {
        "megabytes": MEGABYTES,
        "copy_ms": copy_seconds * 1e3,
        "save / copy": sum(saves[1:]) / rounds / copy_seconds,
        "first save / first copy": saves[0] / copies[0],
        "torch.save / copy": sum(plain_saves[1:]) / rounds / copy_seconds,
    }


def _cpu_seconds(function: Callable[[], Any]) -> float:
    start = time.thread_time()
    function()
    return time.thread_time() - start
