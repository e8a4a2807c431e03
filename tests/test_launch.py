"""launch(). This file is also the program that launches two processes: see `two_processes`."""

import json
import operator
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from engine import launch
from engine.launch import may_restart, was_restarted
from engine.parallel import comm
from engine.parallel.network import FlagError


def work(folder: str) -> dict:
    """Trains on two processes; returns, on each, what both saw."""
    from engine.config import get_cfg
    from engine.defaults import DefaultTrainer, default_setup

    torch.set_num_threads(1)
    cfg = get_cfg()
    cfg.merge_from_file(f"{folder}/config.yaml")
    cfg.OUTPUT_DIR = f"{folder}/out"
    default_setup(cfg, {})
    trainer = DefaultTrainer(cfg)
    first_labels = next(iter(trainer.data_loader))["label"].tolist()
    results = trainer.train()
    weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    cfg.SOLVER.IMS_PER_BATCH = 15
    return {
        "ranks": comm.all_gather(comm.get_rank()),
        "local ranks": comm.all_gather(comm.get_local_rank()),
        "weights": comm.all_gather(weights.double().sum().item()),
        "labels": comm.all_gather(first_labels),
        "results": comm.all_gather(results),
        "rank": comm.get_rank(),
        "odd batch": error_of(lambda: DefaultTrainer(cfg)),
    }


def error_of(function) -> str:
    try:
        return f"returned {function()}"
    except ValueError as error:
        return str(error)


def run_this_file(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, __file__, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """What launch(work, 2) returned, and the folder of the run."""
    folder = tmp_path_factory.mktemp("launch")
    (folder / "config.yaml").write_text(
        """
        SEED: 0
        MODEL: {META_ARCHITECTURE: 'engine.zoo.digits:DigitsCNN', ARGS: {width: 4}}
        DATASETS: {TRAIN: [digits_train], TEST: [digits_test]}
        DATALOADER: {NUM_WORKERS: 0}
        SOLVER: {MAX_ITER: 30, BASE_LR: 0.1, STEPS: [25], WARMUP_ITERS: 0, IMS_PER_BATCH: 64}
        CHECKPOINT: {BEST_METRIC: +classification/accuracy}
        EARLY_STOPPING: {METRIC: +classification/accuracy}
        EMA: {ENABLED: true, DECAY: 0.5}
        TEST: {EVAL_PERIOD: 10, EXPECTED_RESULTS: [[classification, accuracy, 60, 40]]}
        """
    )
    done = run_this_file(str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), folder


def test_one_process_is_this_one_and_its_result_is_returned():
    assert launch(operator.add, 1, args=(2, 3)) == 5
    assert launch(os.getpid, 1) == os.getpid()


def test_with_no_gpus_it_is_one_process_too():
    assert launch(operator.add, 0, args=(2, 3)) == 5


def test_errors_of_a_single_process_come_out_as_they_are():
    with pytest.raises(ZeroDivisionError):
        launch(operator.truediv, 1, args=(1, 0))


@pytest.mark.parametrize("dist_url", [None, "auto"])
def test_several_machines_need_an_address(dist_url):
    with pytest.raises(ValueError, match="--dist-url host:port of machine 0 is needed"):
        launch(operator.add, 2, num_machines=2, dist_url=dist_url)


def test_what_rank_0_returned_is_returned(two_processes):
    seen, _ = two_processes
    assert seen["rank"] == 0
    assert seen["ranks"] == seen["local ranks"] == [0, 1]


def test_two_processes_train_one_model_on_the_cpu(two_processes):
    seen, _ = two_processes
    assert seen["weights"][0] == seen["weights"][1]
    assert seen["results"][0] == seen["results"][1]
    assert seen["results"][0]["classification"]["accuracy"] > 20  # a guess has 10


def test_each_process_reads_its_own_half_of_a_batch(two_processes):
    first, second = two_processes[0]["labels"]
    assert len(first) == len(second) == 32
    assert first != second


def test_the_files_of_two_processes_are_those_of_one_run(two_processes):
    _, folder = two_processes
    names = {path.name for path in (folder / "out").iterdir()}
    assert {"model_final.pth", "model_best.pth", "log.txt", "log.txt.rank1"} <= names
    assert len([name for name in names if name.startswith("events.")]) == 1
    lines = (folder / "out" / "metrics.json").read_text().splitlines()
    iterations = [json.loads(line)["iteration"] for line in lines]
    assert iterations == sorted(set(iterations))


def test_a_batch_that_cannot_be_split_evenly_is_refused(two_processes):
    message = two_processes[0]["odd batch"]
    assert "IMS_PER_BATCH is 15, which cannot be split over 2 processes" in message
    assert "16" in message


def test_two_processes_say_that_they_compute_on_the_cpu(two_processes):
    _, folder = two_processes
    text = (folder / "out" / "log.txt").read_text()
    assert torch.cuda.is_available() or "compute on cpu and meet through gloo" in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--max-restarts -1", "--max-restarts -1: expected 0 or more"),
        (
            "--num-machines 2 --dist-url here:99999",
            "--dist-url here:99999: expected host:port of machine 0, with a port from 1 to 65535",
        ),
    ],
)
def test_wrong_flags_are_one_line(flags, message):
    script = Path(__file__).parents[1] / "tools" / "train_net.py"
    done = subprocess.run(
        [sys.executable, script, *flags.split()], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (1, f"FlagError: {message}\n")


def test_machines_are_numbered_from_0():
    with pytest.raises(
        ValueError, match=r"--machine-rank 5: 1 machine\(s\) have the numbers 0 to 0"
    ):
        launch(operator.add, 1, machine_rank=5)
    for machines, gpus in [(0, 2), (1, -1)]:
        with pytest.raises(
            ValueError, match=f"--num-gpus {gpus} --num-machines {machines}: expect"
        ):
            launch(operator.add, gpus, num_machines=machines)
    with pytest.raises(ValueError, match="--dist-url host:port of machine 0 is needed"):
        launch(operator.add, 0, num_machines=2)
    with pytest.raises(ValueError, match=r"--machine-rank 2: .* numbers 0 to 1"):
        launch(operator.add, 2, num_machines=2, machine_rank=2, dist_url="127.0.0.1:29500")


@pytest.mark.parametrize("way", ["-c", "-"])
def test_a_function_that_is_in_no_file_is_refused_before_processes_are_started(way):
    code = "from engine import launch\ndef main(): return 5\n"
    assert run_code(way, code + "assert launch(main, 1) == 5").stderr == ""
    done = run_code(way, code + "launch(main, 2)")
    message = "FlagError: new processes cannot import main, which is in no file, as in a notebook"
    assert message in done.stderr.splitlines()[-1]
    assert "put it into a .py file of its own and import it" in done.stderr.splitlines()[-1]


def test_a_function_that_new_processes_do_not_find_is_told_with_the_likely_cause(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from engine import launch\n"
        "if __name__ == '__main__':\n"
        "    def main(): return 5\n"
        "    launch(main, 2)\n"
    )
    done = run_code(str(script), "")
    assert "AttributeError: Can't get attribute 'main'" in done.stderr
    *_, failure, cause = done.stderr.splitlines()
    assert re.search(r"LaunchError: Rank [01] ended with exit code 1$", failure)
    assert cause.startswith("It did not come to the function: new processes import the program")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("death", "report"),
    [
        (
            "raise ImportError('no')",
            "Rank [01] ended with exit code 1\nIt did not come to the",
        ),
        ("os.kill(os.getpid(), 9)", "Rank [01] was killed by SIGKILL"),
    ],
)
def test_a_death_before_the_function_is_not_waited_for(tmp_path, death, report):
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nfrom engine import launch\n"
        "def main(): return 5\n"
        "if __name__ == '__main__':\n    launch(main, 2)\n"
        "elif os.path.exists(__file__ + '.one'):\n    " + death + "\n"
        "else:\n    open(__file__ + '.one', 'x').close()\n"
    )
    start = time.monotonic()
    done = run_code(str(script), "")
    assert re.search(f"LaunchError: {report}", done.stderr)
    assert time.monotonic() - start < 30  # as long as torch waits for the other one


@pytest.mark.slow
def test_a_process_that_fails_where_the_disk_is_full_prints_its_error(
    small_disk, tmp_path, monkeypatch
):
    script = tmp_path / "script.py"
    script.write_text(
        "import shutil\nfrom pathlib import Path\n"
        "from engine import launch\nfrom engine.parallel import comm\n"
        "def main(disk):\n"
        "    if comm.is_main_process():\n"
        "        Path(disk, 'others').write_bytes(bytes(shutil.disk_usage(disk).free))\n"
        "        1 / 0\n"
        f"if __name__ == '__main__':\n    launch(main, 2, args=({str(small_disk)!r},))\n"
    )
    monkeypatch.setenv("TMPDIR", str(small_disk))
    errors = run_code(str(script), "").stderr
    assert "ZeroDivisionError: division by zero" in errors
    assert "LaunchError: Rank 0 ended with exit code 1" in errors


@pytest.mark.parametrize("way", ["pkg", "-m"])
def test_a_function_in_the_main_of_a_package_is_refused(tmp_path, monkeypatch, way):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__main__.py").write_text(
        "from engine import launch\n"
        "def main(): return 5\n"
        "if __name__ == '__main__':\n    launch(main, 2)\n"
    )
    command = [sys.executable, *(["-m", "pkg"] if way == "-m" else [str(package)])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    message = "new processes cannot import main, which is in a __main__.py: put it into a .py"
    assert message in done.stderr.splitlines()[-1]


def run_code(way: str, code: str) -> subprocess.CompletedProcess[str]:
    """`python -c CODE`, `python -` that reads it from stdin, or a script."""
    command = [sys.executable, way, *([code] if way == "-c" else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        command, input=code, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("function", "args", "name"),
    [(lambda: 1, (), "<lambda>"), (print, (1, threading.Lock()), "_thread.lock")],
)
def test_what_cannot_be_sent_to_new_processes_is_named(function, args, name):
    with pytest.raises(FlagError, match=f"{name}.* cannot be sent to new processes: .*pickle"):
        launch(function, 2, args=args)


# --- under torchrun and srun ----------------------------------------------------------------


@pytest.fixture
def torchrun(monkeypatch):
    """Makes this process rank 0 of 1, as torchrun would."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    variables = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    for name, value in {**variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    return f"127.0.0.1:{port}"


def test_under_torchrun_the_function_runs_in_this_process_and_its_group(torchrun):
    seen = launch(lambda: (os.getpid(), dist.get_backend(), comm.get_local_size()), 1)
    assert seen == (os.getpid(), dist.get_default_backend_for_device("cpu"), 1)
    assert not dist.is_initialized()


def test_a_timeout_may_be_a_number_of_seconds(torchrun):
    assert launch(lambda: comm.timeout, 1, timeout=90) == timedelta(seconds=90)


def test_flags_that_say_what_torchrun_says_are_fine(torchrun):
    assert launch(operator.add, 1, 1, 0, f"tcp://{torchrun}", (2, 3)) == 5


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_gpus_per_machine": 4}, "--num-gpus 4 contradicts .* there it is 1"),
        ({"num_machines": 2}, "--num-machines 2 contradicts .* there it is 1"),
        ({"machine_rank": 1}, "--machine-rank 1 contradicts .* there it is 0"),
        ({"dist_url": "10.0.0.1:29500"}, "--dist-url 10.0.0.1:29500 contradicts .* 127.0.0.1:"),
        ({"max_restarts": 3}, "--max-restarts 3 contradicts .* there it is 0"),
    ],
)
def test_flags_that_contradict_torchrun_are_refused(torchrun, flags, message):
    with pytest.raises(ValueError, match=message):
        launch(operator.add, **{"num_gpus_per_machine": 1, "args": (2, 3), **flags})
    assert not dist.is_initialized()


def test_flags_that_contradict_srun_are_refused(monkeypatch):
    step = {"JOB_ID": "7", "STEP_NUM_TASKS": "2", "STEP_TASKS_PER_NODE": "1(x2)", "PROCID": "1"}
    for name, value in {**step, "STEP_NODELIST": "n[1-2]", "LOCALID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    with pytest.raises(ValueError, match="--num-machines 3 contradicts srun: there it is 2"):
        launch(operator.add, 8, num_machines=3, args=(2, 3))


def test_the_error_of_a_function_under_torchrun_comes_out_as_it_is(torchrun):
    try:
        with pytest.raises(ZeroDivisionError):
            launch(operator.truediv, 1, args=(1, 0))
    finally:
        dist.destroy_process_group()


def test_a_run_that_torchrun_has_restarted_knows_it(monkeypatch):
    assert not was_restarted()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert was_restarted()


def test_a_script_knows_whether_its_launcher_restarts_it(monkeypatch):
    assert not may_restart()
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "2")
    assert may_restart()


if __name__ == "__main__":
    print(json.dumps(launch(work, 2, args=(sys.argv[1],))))


def test_a_launch_in_what_was_launched_is_refused(torchrun):
    with pytest.raises(FlagError, match="call the function itself"):
        launch(launch, 1, args=(operator.add, 1, 1, 0, None, (2, 3)))
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("rendezvous", [["--standalone"], ["--master-port", "29885"]])
def test_torchrun_may_launch_several_times_and_restart(tmp_path, rendezvous):
    script = tmp_path / "program.py"
    script.write_text(
        "import os\nfrom engine import launch\nfrom engine.parallel import comm\n"
        "def main(last):\n"
        "    if last and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and comm.get_rank():\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return comm.all_gather(comm.get_rank())\n"
        "for last in (False, False, True):\n    ranks = launch(main, 2, args=(last,), timeout=30)\n"
        "os.write(1, f'in the end {ranks}\\n'.encode())\n"  # two processes write at once
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*command, "--max-restarts=1", *rendezvous, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("in the end [0, 1]") == 2


def test_a_task_that_srun_ends_because_another_has_stopped_ends_with_75_too(torchrun, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import atexit, sys, time\nfrom engine import launch\nfrom engine.parallel import comm\n"
        "def main():\n"
        "    atexit.register(time.sleep, 2 * comm.get_rank())\n"  # rank 1 is the last to end
        "    sys.exit(75)\n"
        "launch(main, 1)\n"
    )
    path = {"PYTHONPATH": os.pathsep.join(sys.path), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    first, last = (
        subprocess.Popen(
            [sys.executable, str(script)],
            env={**os.environ, **path, "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in "01"
    )
    try:
        assert first.wait(60) == 75
        last.terminate()
        assert last.wait(60) == 75
    finally:
        first.kill()
        last.kill()


def test_a_launcher_that_srun_ends_because_another_has_stopped_ends_with_75_too(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import atexit, os, sys, time\nfrom engine import launch\n"
        "def end():\n    os.write(1, b'ending\\n')\n    time.sleep(2)\n"
        "def main():\n    sys.exit(75)\n"
        "if __name__ == '__main__':\n    atexit.register(end)\n    launch(main, 2)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout.readline() == b"ending\n"
        launcher.terminate()
        assert launcher.wait(60) == 75


def test_a_program_that_goes_on_after_a_stopped_run_heeds_sigterm(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import signal, sys\nfrom engine import launch\n"
        "def main():\n    sys.exit(75)\n"
        "if __name__ == '__main__':\n"
        "    try:\n        launch(main, 2)\n"
        "    except SystemExit:\n        signal.raise_signal(signal.SIGTERM)\n"
    )
    assert run_code(str(script), "").returncode == -signal.SIGTERM


def test_a_program_from_stdin_is_refused():
    code = "from engine import launch\nimport operator\nlaunch(operator.add, 2, args=(2, 3))\n"
    assert "new processes cannot import a program from stdin" in run_code("-", code).stderr
