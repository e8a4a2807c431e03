"""Training on two machines: two network namespaces with a cable between them, or one address.

`KILLS=50 SLOW_SECONDS=inf pytest -s -o session_timeout=3000 -k kills` on it measures recoveries.
"""

import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
TORCHRUN = ["-m", "torch.distributed.run"]
KILLS = int(os.environ.get("KILLS", 0))
FIFTY_STEPS = ["SOLVER.MAX_ITER", "50"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 60 * KILLS)]


class Launcher:
    """A program that has started processes, on one machine."""

    def __init__(self, command: list[str], environment: dict[str, str], output: Path) -> None:
        self._output = output
        with output.open("w") as file:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def workers(self) -> list[int]:
        """Ids of the processes that it has started."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        children = [child for thread in threads for child in thread.read_text().split()]
        commands = {child: Path(f"/proc/{child}/cmdline").read_text() for child in children}
        return [int(child) for child in children if "spawn_main" in commands[child]]

    def lose(self) -> None:
        """What the loss of its machine does to it."""
        pids = self.workers()
        self.process.kill()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Machines:
    """Two machines; 0 has the greater address, so that torch alone would call it 1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = [f"engine{os.getpid()}m{machine}" for machine in (0, 1)]
        self.namespaces = names if _may_make_namespaces() else []
        self.addresses = ["10.77.1.2", "10.77.1.1"] if self.namespaces else ["127.0.0.2"] * 2
        self.processes: list[Launcher] = []
        for name in self.namespaces:
            _ip("netns", "add", name)
        if self.namespaces:
            _ip("link", "add", "cable", "netns", names[0],
                "type", "veth", "peer", "name", "cable", "netns", names[1])  # fmt: skip
        for name, address in zip(self.namespaces, self.addresses, strict=False):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            _ip("-n", name, "link", "set", "cable", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def start(self, machine: int, *command: str, **environment: str) -> "Launcher":
        """Runs `python COMMAND` on a machine."""
        inside = ["ip", "netns", "exec", self.namespaces[machine]] if self.namespaces else []
        output = self.folder / f"output{len(self.processes)}.txt"
        self.processes.append(Launcher([*inside, sys.executable, *command], environment, output))
        return self.processes[-1]

    def set_cable(self, state: str) -> None:
        _ip("-n", self.namespaces[1], "link", "set", "cable", state)

    def clear(self) -> None:
        for process in self.processes:
            process.lose()
        for name in self.namespaces:
            _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _may_make_namespaces() -> bool:
    if shutil.which("ip") is None:
        return False
    probe = ["unshare", "--net", "true"]
    return subprocess.run(probe, stderr=subprocess.DEVNULL).returncode == 0


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    made.clear()


def script(folder: Path, *overrides: str) -> list[str]:
    tool = ["tools/train_net.py", "--config-file", "configs/digits/cnn.yaml"]
    return [*tool, "OUTPUT_DIR", str(folder), *overrides]


def finish(*launchers: Launcher) -> None:
    for launcher in launchers:
        assert launcher.process.wait() == 0, launcher.output  # pytest's timeout ends it


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "model_final.pth", weights_only=True)["model"]


def assert_same_bits(first: Path, second: Path) -> None:
    for name, value in weights(first).items():
        assert torch.equal(weights(second)[name], value), name


def lines(folder: Path) -> list[dict]:
    try:
        text = (folder / "metrics.json").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]


def losses(folder: Path) -> list[tuple[int, float]]:
    return [
        (line["iteration"], line["total_loss"]) for line in lines(folder) if "total_loss" in line
    ]


def wait_until(condition: Callable[[], bool], *launchers: Launcher) -> None:
    while not condition():
        for launcher in launchers:
            assert launcher.process.poll() is None, launcher.output
        time.sleep(0.02)


def start_with_num_gpus(machines: Machines, folder: Path) -> list[Launcher]:
    return [machines.start(0, *script(folder, *FIFTY_STEPS), "--num-gpus", "2")]


def start_with_torchrun(machines: Machines, folder: Path) -> list[Launcher]:
    launcher = [*TORCHRUN, "--standalone", "--nproc-per-node", "2"]
    return [machines.start(0, *launcher, *script(folder, *FIFTY_STEPS))]


def start_with_srun(machines: Machines, folder: Path, *flags: str) -> list[Launcher]:
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_STEP_NODELIST": f"[{machines.addresses[0]}]",
        "SLURM_LOCALID": "0",
    }
    words = [*script(folder, *FIFTY_STEPS), *flags]
    return [machines.start(task, *words, **step, SLURM_PROCID=str(task)) for task in (0, 1)]


def start_with_launchers_of_srun(machines: Machines, folder: Path) -> list[Launcher]:
    return start_with_srun(machines, folder, "--max-restarts", "1")


def start_with_num_machines(machines: Machines, folder: Path) -> list[Launcher]:
    words = script(folder, *FIFTY_STEPS)
    words += ["--num-machines", "2", "--dist-url", f"{machines.addresses[0]}:29811"]
    return [machines.start(rank, *words, "--machine-rank", str(rank)) for rank in (0, 1)]


def start_with_nnodes(machines: Machines, folder: Path) -> list[Launcher]:
    words = [*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    words += ["--rdzv-endpoint", f"{machines.addresses[0]}:29812"]
    return [
        machines.start(
            rank, *words, "--rdzv-conf", f"is_host={1 - rank}",
            "--local-addr", machines.addresses[rank], *script(folder, *FIFTY_STEPS),
        )
        for rank in (0, 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "start",
    [
        start_with_torchrun,
        start_with_srun,
        start_with_launchers_of_srun,
        start_with_num_machines,
        start_with_nnodes,
    ],
    ids=lambda start: start.__name__,
)
def test_the_same_bits_come_from_every_way_to_start_two_processes(machines, tmp_path, start):
    finish(*start_with_num_gpus(machines, tmp_path / "num-gpus"))
    finish(*start(machines, tmp_path / "other"))
    assert_same_bits(tmp_path / "num-gpus", tmp_path / "other")


@pytest.mark.parametrize("lost", [0, 1])
def test_a_machine_that_is_lost_and_comes_back_has_lost_nothing(machines, tmp_path, lost):
    steps = ["SOLVER.MAX_ITER", "150", "SOLVER.CHECKPOINT_PERIOD", "20", "LOG_PERIOD", "1"]
    finish(machines.start(0, *script(tmp_path / "straight", *steps), "--num-gpus", "2"))

    flags = ["--num-machines", "2", "--max-restarts", "2"]
    flags += ["--dist-url", f"{machines.addresses[0]}:29821"]
    folder = tmp_path / "lost"

    def start(machine: int) -> Launcher:
        return machines.start(
            machine, *script(folder, *steps), *flags, "--machine-rank", str(machine)
        )

    running = [start(0), start(1)]
    wait_until(lambda: len(lines(folder)) > 30, *running)
    running[lost].lose()
    running[lost] = start(lost)
    finish(*running)
    assert_same_bits(tmp_path / "straight", folder)
    assert losses(folder) == losses(tmp_path / "straight")


def test_a_cut_cable_ends_both_machines_with_a_message(machines, tmp_path):
    if not machines.namespaces:
        pytest.skip("this machine does not allow network namespaces")
    program = tmp_path / "program.py"
    program.write_text(
        """
import sys, time
from datetime import timedelta
from engine import launch
from engine.parallel import comm

def work():
    print("working", flush=True)
    while True:
        comm.synchronize()

if __name__ == "__main__":
    launch(work, 1, 2, int(sys.argv[1]), sys.argv[2], timeout=timedelta(seconds=20))
"""
    )
    url = f"{machines.addresses[0]}:29831"
    running = [machines.start(machine, str(program), str(machine), url) for machine in (0, 1)]
    wait_until(lambda: all("working" in launcher.output for launcher in running), *running)
    machines.set_cable("down")
    for machine, launcher in enumerate(running):
        assert launcher.process.wait() == 1
        assert f"machine {1 - machine} has been silent for 15 s" in launcher.output


def kill_one(folder: Path, running: list[Launcher], pause: int) -> float:
    """Kill a process after a number of iterations; the seconds from then to the next step."""
    log, metrics = folder / "log.txt", folder / "metrics.json"
    begin = len(losses(folder))
    wait_until(lambda: len(losses(folder)) >= begin + pause, *running)
    time.sleep(random.uniform(0, 0.3))
    starts = log.read_text().count("Starting training")
    os.kill(random.choice([pid for launcher in running for pid in launcher.workers()]), 9)
    killed_at = time.monotonic()
    wait_until(lambda: log.read_text().count("Starting training") > starts, *running)
    size = metrics.stat().st_size
    wait_until(lambda: metrics.stat().st_size > size, *running)
    return time.monotonic() - killed_at


@pytest.mark.skipif(not KILLS, reason="KILLS=50 runs it with so many")
@pytest.mark.parametrize("num_machines", [1, 2])
def test_kills_of_random_processes_are_recovered_from(machines, tmp_path, num_machines):
    pause = 20  # iterations from a recovery to the next kill
    steps = ["SOLVER.MAX_ITER", str((KILLS + 1) * (pause + 30)), "LOG_PERIOD", "1"]
    steps += ["SOLVER.CHECKPOINT_PERIOD", "10", "TEST.EVAL_PERIOD", "0"]
    finish(machines.start(0, *script(tmp_path / "straight", *steps), "--num-gpus", "2"))

    flags = ["--max-restarts", str(KILLS)]
    if num_machines == 2:
        flags += ["--num-machines", "2", "--dist-url", f"{machines.addresses[0]}:29841"]
    else:
        flags += ["--num-gpus", "2"]
    folder = tmp_path / "killed"
    running = [
        machines.start(machine, *script(folder, *steps), *flags, "--machine-rank", str(machine))
        for machine in range(num_machines)
    ]
    seconds = [kill_one(folder, running, pause) for _ in range(KILLS)]
    finish(*running)
    assert_same_bits(tmp_path / "straight", folder)
    assert losses(folder) == losses(tmp_path / "straight")
    print(
        f"\n{num_machines} machine(s): {KILLS} kills, {len(seconds)} recoveries; seconds from a "
        f"death to the next step: median {statistics.median(seconds):.1f}, most {max(seconds):.1f}"
    )
