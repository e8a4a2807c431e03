"""The scripts for Slurm and Kubernetes."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from engine import default_argument_parser

TOOLS = Path(__file__).parents[1] / "tools"


@pytest.fixture
def sbatch(tmp_path):
    """Runs train.sbatch where srun ends with some code; returns that of the script, and calls."""

    def run(code: int, *arguments: str) -> tuple[int, list[str]]:
        for name, answer in {"srun": code, "scontrol": 0}.items():
            path = tmp_path / name
            path.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\nexit {answer}\n')
            path.chmod(0o755)
        environment = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "4711",
            "SLURM_GPUS_ON_NODE": "4",
            "SLURM_CPUS_PER_TASK": "64",
        }
        script = ["bash", str(TOOLS / "slurm" / "train.sbatch"), *arguments]
        done = subprocess.run(script, env=environment)
        return done.returncode, (tmp_path / "calls").read_text().splitlines()

    return run


def parse(words: list[str]):
    """The arguments that a command gives to tools/train_net.py, after which there may be others."""
    return default_argument_parser().parse_args(words[words.index("tools/train_net.py") + 1 :])


def test_slurm_starts_a_launcher_on_each_machine(sbatch):
    code, (call,) = sbatch(0, "--config-file", "some.yaml", "OUTPUT_DIR", "out")
    own, _, _ = call.partition(" python ")
    assert own == "srun --kill-on-bad-exit=0 --wait=300 --cpus-per-task=64"
    args = parse(call.split())
    assert code == 0
    assert (args.num_gpus, args.max_restarts, args.resume) == (4, 3, True)
    assert (args.config_file, args.opts) == ("some.yaml", ["OUTPUT_DIR", "out"])


@pytest.mark.parametrize(("code", "requeues"), [(75, ["scontrol requeue 4711"]), (1, [])])
def test_slurm_puts_a_run_that_was_stopped_into_the_queue_again(sbatch, code, requeues):
    ended, calls = sbatch(code)
    assert ended == code
    assert calls[1:] == requeues


def test_kubernetes_runs_torchrun_in_each_pod():
    job = yaml.safe_load((TOOLS / "kubernetes" / "pytorchjob.yaml").read_text())
    for kind in ("Master", "Worker"):
        (pod,) = job["spec"]["pytorchReplicaSpecs"][kind]["template"]["spec"]["containers"]
        assert pod["name"] == "pytorch"  # or the operator does not set its variables
        assert pod["command"][0] == "torchrun"
        assert parse(pod["command"]).resume
