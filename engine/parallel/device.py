"""Which device a process computes on, and what carries tensors between processes there."""

import torch
import torch.distributed as dist

from engine.parallel import comm

BACKENDS = {"cuda": "nccl", "xpu": "xccl", "cpu": "gloo"}


def choose_device(name: str = "auto") -> torch.device:
    """The named device; "auto" is the accelerator of this machine, else the CPU.

    With several processes on a machine, each takes the accelerator of its local rank.
    """
    alone = comm.get_world_size() == 1
    if name == "auto":
        name = "mps" if alone and _is_available("mps") else find_accelerator() or "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        known = "'auto', 'cuda', 'mps', 'xpu' or 'cpu'"
        raise ValueError(f"{name!r} is no device; use {known}") from None
    if device.type == "meta":
        raise ValueError("tensors on 'meta' have no values, so nothing can be computed; use 'auto'")
    if not _is_available(device.type):
        raise ValueError(f"this machine or this build of torch has no device {name!r}; use 'auto'")
    if device.type == "mps" and not alone:
        raise ValueError(
            f"{comm.get_world_size()} processes cannot exchange tensors of 'mps'; "
            "run one process, or use 'cpu'"
        )
    if device.type not in ("cuda", "xpu"):
        return device
    if device.index is None:
        return torch.device(device.type, comm.get_local_rank())
    if device.index >= (there := _count(device.type)):
        raise ValueError(
            f"this machine has {there} {device.type} device(s) and no {name!r}; use 'auto'"
        )
    return device


def find_accelerator() -> str | None:
    """The kind of accelerator of which each process of this machine can have its own, if any."""
    return next((kind for kind in ("cuda", "xpu") if _is_available(kind)), None)


def check_count(wanted: int) -> None:
    """Refuse more processes than this machine has accelerators, if it has any."""
    if (kind := find_accelerator()) is None:
        return
    if wanted > (there := _count(kind)):
        raise ValueError(
            f"{wanted} processes on this machine, which has {there} {kind} device(s); run at most "
            f"{there}, or hide them (for cuda: CUDA_VISIBLE_DEVICES=) to compute on the CPU"
        )


def set_current_device(local_rank: int) -> str:
    """Make the accelerator of this local rank the current one; returns its kind, or "cpu"."""
    if (kind := find_accelerator()) is None:
        return "cpu"
    check_count(local_rank + 1)
    getattr(torch, kind).set_device(local_rank)
    return kind


def kind_and_backend() -> tuple[str, str]:
    """What the processes of this run compute on, and what they exchange tensors with."""
    return find_accelerator() or "cpu", dist.get_backend()


def _count(kind: str) -> int:
    return getattr(torch, kind).device_count()


def _is_available(kind: str) -> bool:
    if kind == "cpu":
        return True
    backend = torch.backends.mps if kind == "mps" else getattr(torch, kind, None)
    return backend is not None and backend.is_available()
