import ctypes
import multiprocessing
import os
import signal
import time

import pytest
from torch.utils.data import IterableDataset

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


def test_a_worker_that_is_terminated_is_an_error_only_where_data_is_needed(loaders):
    loader = loaders("test", num_workers=1, mapper=lambda sample: time.sleep(0.1) or sample)
    iterator = iter(loader)
    next(iterator)
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid, signal.SIGTERM)
    worker.join()
    time.sleep(0.1)  # a signal handler's time
    with pytest.raises(LostWorkerError, match="exited unexpectedly"):
        list(iterator)


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
