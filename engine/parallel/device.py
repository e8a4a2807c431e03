"""Which device a process computes on."""

import torch

from engine.parallel import comm


def choose_device(name: str = "auto") -> torch.device:
    """The named device; "auto" is the accelerator of this machine, else the CPU.

    With several processes on a machine, each takes the accelerator of its local rank.
    """
    if name == "auto":
        name = next((kind for kind in ("cuda", "xpu", "mps") if _is_available(kind)), "cpu")
    device = torch.device(name)
    if not _is_available(device.type):
        raise ValueError(f"this machine or this build of torch has no device {name!r}; use 'auto'")
    if device.type in ("cuda", "xpu") and device.index is None:
        return torch.device(device.type, comm.get_local_rank())
    return device


def _is_available(kind: str) -> bool:
    if kind in ("cpu", "meta"):
        return True
    backend = torch.backends.mps if kind == "mps" else getattr(torch, kind, None)
    return backend is not None and backend.is_available()
