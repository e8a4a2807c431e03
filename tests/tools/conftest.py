import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def run_tool(monkeypatch, own_loggers):
    """Runs a script of tools/ in this process, as `python tools/NAME ARGUMENTS` would."""

    def run(name, *arguments):
        script = str(TOOLS / name)
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
        return runpy.run_path(script, run_name="__main__")

    return run


@pytest.fixture
def start_tool():
    """Runs a script of tools/ in a process of its own."""

    def start(name, *arguments, stdout=subprocess.PIPE, timeout=110):
        environment = {**os.environ, "PYTHONPATH": str(TOOLS.parent), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, TOOLS / name, *map(str, arguments)],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            timeout=timeout,
        )

    return start
