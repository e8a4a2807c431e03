"""That the benchmark of two processes measures; its figures are those of the machine."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "tools" / "benchmark_ddp.py"


@pytest.fixture(scope="module")
def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARK.parent)  # as for a script that is started
        return runpy.run_path(str(BENCHMARK), run_name="benchmark_ddp")


@pytest.mark.usefixtures("log", "one_rank")
def test_blocks_of_two_loops_are_measured_in_pairs(benchmark):
    for pairs in (
        benchmark["engine_against_bare"]("small", 13, metrics=5),
        benchmark["bare_against_bare"]("small", 13),
    ):
        assert len(pairs) == 2  # the first ones warm up
        assert all(min(*one, *bare) > 0 for one, bare in pairs)


@pytest.mark.slow
def test_metrics_are_sent_once_a_write_however_many_there_are():
    code = "import benchmark_ddp, json; print(json.dumps(benchmark_ddp.measure_messages()))"
    paths = os.pathsep.join([str(BENCHMARK.parent), str(BENCHMARK.parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    assert [row["metrics"] for row in rows] == [5, 100]
    for row in rows:
        assert (row["in a quiet step"], row["in a writing step"]) == (0, 1)
