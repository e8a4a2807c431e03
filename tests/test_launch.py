"""launch(). This file is also the program that launches two processes: see `two_processes`."""

import json
import operator
import os
import subprocess
import sys

import pytest

from engine import launch
from engine.parallel import comm


def work(folder: str) -> dict:
    """Trains on two processes; returns, on each, what both saw."""
    import torch

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
    assert "15 cannot be split evenly over 2 ranks" in message
    assert "16" in message


@pytest.mark.slow
def test_the_error_of_a_rank_reaches_the_caller():
    failed = run_this_file("fail")
    assert failed.returncode == 1
    assert "ZeroDivisionError" in failed.stderr


if __name__ == "__main__":
    if sys.argv[1] == "fail":
        launch(operator.truediv, 2, args=(1, 0))
    else:
        print(json.dumps(launch(work, 2, args=(sys.argv[1],))))
