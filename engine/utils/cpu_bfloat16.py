"""Whether this machine's CPU can compute in bfloat16."""

import functools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_PROBE = """
import torch
with torch.autocast("cpu", dtype=torch.bfloat16):
    torch.nn.Linear(64, 64)(torch.randn(32, 64)).sum().backward()
"""


@functools.cache
def has_working_bfloat16_kernels() -> bool:
    """Whether oneDNN's kernels for bfloat16 run here.

    Some virtual machines announce AMX without having it, and the first of these kernels then ends
    the process (illegal instruction). So another process tries them.
    """
    announces_amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    if not torch.backends.mkldnn.is_available() or not announces_amx():
        return True
    return subprocess.run([sys.executable, "-c", _PROBE], capture_output=True).returncode == 0


@contextmanager
def without_onednn() -> Iterator[None]:
    """Have torch's own kernels used inside instead of oneDNN's."""
    # Not `mkldnn.flags`, which sets TF32 too and warns where there is none.
    was_enabled = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = was_enabled
