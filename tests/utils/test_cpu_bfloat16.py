import subprocess
import sys

import pytest
import torch

from engine.utils import cpu_bfloat16
from engine.utils.cpu_bfloat16 import has_working_bfloat16_kernels, without_onednn


def test_it_agrees_with_what_happens_to_a_process_that_tries():
    program = (
        "import torch\n"
        "with torch.autocast('cpu', dtype=torch.bfloat16):\n"
        "    torch.nn.Linear(256, 256)(torch.randn(64, 256)).sum().backward()\n"
    )
    survived = subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0
    assert has_working_bfloat16_kernels() == survived


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_kernels_that_kill_the_process_are_found(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(
        cpu_bfloat16, "_PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    )
    assert not cpu_bfloat16.has_working_bfloat16_kernels.__wrapped__()


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_onednn_is_left_out_inside_only():
    def enabled() -> bool:
        return torch._C._get_mkldnn_enabled()

    def fail() -> None:
        with without_onednn():
            assert not enabled()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert enabled()
