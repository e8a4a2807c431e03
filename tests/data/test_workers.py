import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
from torch.utils.data import IterableDataset, SequentialSampler

from engine.data import build_test_loader, build_train_loader
from engine.data.workers import LostWorkerError, under_way
from engine.utils.faults import report_faults_to

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def ends_its_process(by):
    """A mapper that at sample 5 ends the process it runs in, once the main one has had all else."""

    def mapper(sample):
        if sample == 5:
            time.sleep(0.2)
            by()
        return sample

    return mapper


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def loaders():
    """Makes the two kinds of loaders over range(8)."""

    def make(kind, **options):
        if kind == "test":
            return build_test_loader(range(8), batch_size=2, **options)
        return build_train_loader(range(8), total_batch_size=2, seed=0, **options)

    return make


@pytest.mark.parametrize("kind", ["train", "test"])
@pytest.mark.parametrize("end", [die, lambda: os._exit(3)], ids=["killed", "exits"])
def test_a_worker_that_is_lost_names_the_sample(loaders, kind, end):
    loader = loaders(kind, mapper=ends_its_process(end), num_workers=1)
    with pytest.raises(LostWorkerError, match=r"sample 5 \(worker 0, pid \d+\)"):
        list(loader)


def test_it_does_so_wherever_the_main_thread_is(loaders):
    def wait(loader):
        iterator = iter(loader)
        next(iterator)
        while True:  # as if in a long forward pass
            time.sleep(0.01)

    loader = loaders("train", mapper=ends_its_process(die), num_workers=1)
    with pytest.raises(LostWorkerError, match=r"killed by signal: Killed. Being read: sample 5 "):
        wait(loader)


def read_with_a_terminated_worker(loader) -> list[int]:
    iterator = iter(loader)
    first = next(iterator).tolist()
    (worker,) = multiprocessing.active_children()
    subprocess.run(["kill", str(worker.pid)], check=True)  # of its parent, torch takes it otherwise
    worker.join()
    time.sleep(0.1)  # a signal handler's time
    return [*first, *(sample for batch in iterator for sample in batch.tolist())]


def slowly(sample: int) -> int:
    time.sleep(0.1)
    return sample


def test_an_evaluation_goes_on_where_its_workers_are_terminated(log):
    loader = build_test_loader(range(9), batch_size=2, num_workers=1, mapper=slowly)
    assert read_with_a_terminated_worker(loader) == list(range(9))
    assert "SIGTERM has ended workers; new ones go on at batch" in log.text


@pytest.mark.slow
def test_a_terminated_worker_is_an_error_where_the_sampler_may_not_repeat_itself(loaders):
    loader = loaders("test", num_workers=1, mapper=slowly, sampler=SequentialSampler(range(8)))
    with pytest.raises(LostWorkerError, match="exited unexpectedly"):
        read_with_a_terminated_worker(loader)


def crash_in_a_worker(folder) -> None:
    report_faults_to(f"{folder}/faults.txt")
    mapper = ends_its_process(read_nothing)
    loader = build_train_loader(range(8), mapper=mapper, total_batch_size=2, num_workers=1, seed=0)
    for _ in loader:
        pass


def read_nothing() -> None:
    ctypes.string_at(0)


def test_a_crash_of_a_worker_leaves_its_stack_in_the_fault_file(tmp_path):
    process = multiprocessing.get_context("fork").Process(
        target=crash_in_a_worker, args=(tmp_path,)
    )
    process.start()
    process.join()
    assert process.exitcode == 1
    faults = (tmp_path / "faults.txt").read_text()
    assert "Fatal Python error: Segmentation fault" in faults
    assert "in read_nothing\n" in faults


READ_FOR_EVER = """
import sys, time
from engine.data import build_train_loader

def read(sample):
    print("reading", flush=True)
    time.sleep(300)

if __name__ == "__main__":
    options = {"num_workers": 1, "multiprocessing_context": sys.argv[1]}
    next(iter(build_train_loader([1], mapper=read, total_batch_size=1, **options)))
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_worker_that_is_reading_ends_with_its_process(tmp_path, method):
    (tmp_path / "read.py").write_text(READ_FOR_EVER)
    command = [sys.executable, tmp_path / "read.py", method]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == b"reading\n"
        process.kill()
        process.communicate(timeout=30)  # a worker that goes on holds the pipe open


def test_a_function_for_the_start_of_workers_is_called(loaders, tmp_path):
    for kind in ("train", "test"):
        loader = loaders(
            kind, num_workers=2, worker_init_fn=lambda number: (tmp_path / str(number)).touch()
        )
        next(iter(loader))
        files = sorted(tmp_path.iterdir())
        assert [file.name for file in files] == ["0", "1"]
        for file in files:
            file.unlink()


def test_an_iterable_data_set_does_not_number_its_samples():
    class Count(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    assert "does not number" in under_way(build_test_loader(Count()))
