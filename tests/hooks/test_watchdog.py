import ctypes
import gc
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress

import pytest
import torch

from engine import SimpleTrainer
from engine.data import build_train_loader
from engine.hooks import CallbackHook, EvalHook, HookBase, Watchdog
from engine.hooks.watchdog import Watch
from engine.utils.faults import report_faults_to
from engine.utils.logger import setup_logger

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def make_trainer(model, batches, *hooks: HookBase) -> SimpleTrainer:
    trainer = SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.01))
    trainer.register_hooks(hooks)
    return trainer


def watchdogs() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "watchdog"]


class Hanging(HookBase):
    """Hangs at one iteration until the watchdog has said so often enough."""

    def __init__(self, log, reports: int = 1) -> None:
        self.log = log
        self.reports = reports

    def after_step(self) -> None:
        if self.trainer.iter == 3:
            self.wait_for_reports()

    def wait_for_reports(self) -> None:
        before = self.log.text.count("No progress for")
        while self.log.text.count("No progress for") < before + self.reports:
            time.sleep(0.01)


def warnings(log) -> list[str]:
    """All but those of a machine that stood still, of which a test is not the cause."""
    said = [record.getMessage() for record in log.records if record.levelno == logging.WARNING]
    return [text for text in said if not text.startswith("This process did not run")]


def test_a_hook_that_hangs_is_named_with_its_stack_until_the_run_goes_on(model, batches, log):
    steps = CallbackHook(before_step=lambda trainer: time.sleep(0.02))  # some are timed before
    trainer = make_trainer(model, batches, steps, Hanging(log, reports=2), Watchdog("0.2 s"))
    trainer.train(0, 10)
    first = next(i for i, text in enumerate(warnings(log)) if ", at iteration 3. " in text)
    *reports, goes_on = warnings(log)[first : first + 3]
    for report in reports:
        assert ", at iteration 3. Running for " in report
        assert ": Hanging.after_step (" in report
        assert "Thread MainThread:" in report
        assert "in wait_for_reports\n" in report
        assert "_run" not in report.split("Thread MainThread:")[0]
    assert goes_on.startswith("The run goes on, after ")
    assert watchdogs() == []


def test_data_that_does_not_come_is_reported_with_the_sample(model, log):
    given = torch.zeros((), dtype=torch.int32).share_memory_()

    def mapper(index):
        while index == 5 and not given:
            time.sleep(0.01)
        return torch.full((4,), float(index)), torch.ones(1)

    def watch_log():
        while "No progress for" not in log.text:
            time.sleep(0.01)
        given.fill_(1)

    loader = build_train_loader(range(8), mapper=mapper, total_batch_size=2, num_workers=1, seed=0)
    watcher = threading.Thread(target=watch_log)
    watcher.start()
    make_trainer(model, loader, Watchdog("0.3 s")).train(0, 4)
    watcher.join()
    report = next(text for text in warnings(log) if text.startswith("No progress"))
    assert "run_step > loading data, reading sample 5 (worker 0, pid " in report


def test_an_evaluation_is_watched_to_the_end_of_the_run(model, batches, log):
    def evaluate():
        Hanging(log).wait_for_reports()

    make_trainer(model, batches, EvalHook(0, evaluate), Watchdog("0.2 s")).train(0, 2)
    assert any(": EvalHook.after_train (" in text for text in warnings(log))


@pytest.mark.parametrize("failing", ["before_train", "after_step"])
def test_no_thread_is_left_after_an_error(model, batches, failing):
    def fail(trainer):
        raise OSError("disk on fire")

    trainer = make_trainer(model, batches, CallbackHook(**{failing: fail}), Watchdog())
    with pytest.raises(OSError, match="disk on fire"):
        trainer.train(0, 3)
    assert watchdogs() == []


def test_a_timeout_that_is_none_is_refused():
    with pytest.raises(ValueError, match="'10 parsec'"):
        Watchdog("10 parsec")


# --- the rule, without waiting ------------------------------------------------------------------


class Sleeper:
    """A thread that is somewhere, for a watch to look at."""

    def __init__(self, timeout: float = 100.0, factor: float = 10.0) -> None:
        self.watch = Watch(timeout, factor, threading.get_ident())
        self.iteration = self.eval_steps = 0
        self.watch.look(0, 0, 1.0)

    def passes(self, seconds: float, steps: int = 0, eval_steps: int = 0) -> None:
        self.iteration += steps
        self.eval_steps += eval_steps
        self.watch.look(self.iteration, self.eval_steps, seconds)


def test_reports_come_at_the_timeout_and_at_growing_intervals(log):
    run = Sleeper()
    for _ in range(90):
        run.passes(10.0)
    said = [text.split(",")[0] for text in warnings(log)]
    times = ("0:01:40", "0:03:20", "0:06:40", "0:13:20")
    assert said == [f"No progress for {time}" for time in times]
    run.passes(10.0, steps=1)
    assert warnings(log)[-1] == "The run goes on, after 0:15:10"


def test_a_look_keeps_nothing_of_the_step_that_it_saw():
    class Activation:
        pass

    def step() -> weakref.ref:
        activation = Activation()
        watcher = threading.Thread(target=lambda: [watch.look(0, 0, 1.0) for _ in range(2)])
        watcher.start()
        watcher.join()
        return weakref.ref(activation)

    watch = Watch(100.0, 10.0, threading.get_ident())
    gc.disable()  # which would find it, sooner or later
    try:
        assert step()() is None
    finally:
        gc.enable()


def test_slow_steps_are_given_a_multiple_of_their_usual_time(log):
    run = Sleeper(timeout=100.0, factor=10.0)
    for _ in range(5):
        run.passes(15.0)
        run.passes(15.0, steps=1)
    for _ in range(19):
        run.passes(15.0)
    assert warnings(log) == []
    run.passes(15.0)
    assert "A step usually takes 30 s." in warnings(log)[0]


def test_batches_of_an_evaluation_are_progress_and_no_steps(log):
    run = Sleeper()
    run.passes(1.0, steps=100)
    for _ in range(50):
        run.passes(60.0, eval_steps=1)
    run.passes(60.0, steps=1)
    assert warnings(log) == []
    run.passes(100.0)
    assert "A step usually takes 0.01 s." in warnings(log)[0]


def test_what_took_long_once_is_given_twice_that_time(log):
    run = Sleeper()
    for _ in range(2):
        run.passes(100.0)
        run.passes(50.0)
        run.passes(1.0, steps=1)
    assert sum(text.startswith("No progress") for text in warnings(log)) == 1


# --- what only a process of its own can show ----------------------------------------------------


def train(folder, timeout: str, hang) -> None:
    """A run in a process of its own, with a log and a fault file in `folder`."""
    setup_logger(folder)
    report_faults_to(f"{folder}/faults.txt")
    model = torch.nn.Linear(1, 1)
    hook = CallbackHook(after_step=lambda trainer: trainer.iter == 3 and hang())
    make_trainer(model, [torch.ones(1)], hook, Watchdog(timeout)).train(0, 9)


@pytest.fixture
def start(tmp_path):
    """Starts `train` with a function that hangs."""
    started = []

    def start(timeout: str, hang) -> multiprocessing.Process:
        context = multiprocessing.get_context("fork")
        started.append(context.Process(target=train, args=(tmp_path, timeout, hang)))
        started[-1].start()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.join()


def test_a_call_of_c_that_keeps_pythons_lock_leaves_its_stack_in_the_fault_file(start, tmp_path):
    process = start("0.5 s", hold_the_lock)
    process.join()
    assert process.exitcode == 0
    assert "in hold_the_lock\n" in (tmp_path / "faults.txt").read_text()
    assert "This process did not run for " in (tmp_path / "log.txt").read_text()


def hold_the_lock() -> None:
    ctypes.PyDLL(None).sleep(2)


def test_time_in_which_the_process_was_stopped_does_not_count(start, tmp_path):
    hangs, goes_on = multiprocessing.Event(), multiprocessing.Event()

    def hang():
        hangs.set()
        goes_on.wait()

    process = start("2 s", hang)
    hangs.wait()
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(3)
    os.kill(process.pid, signal.SIGCONT)
    goes_on.set()
    process.join()
    assert process.exitcode == 0
    assert "No progress" not in (tmp_path / "log.txt").read_text()


@pytest.mark.slow
def test_a_process_that_is_forked_meanwhile_can_end(tmp_path):
    program = """
import os, sys, time
from engine import TrainerBase
from engine.hooks import Watchdog

class Forking(TrainerBase):
    def run_step(self):
        time.sleep(0.5)  # until the watchdog has set its timer
        if os.fork():
            assert os.wait()[1] == 0
        else:
            sys.exit()

trainer = Forking()
trainer.register_hooks([Watchdog("4 s")])
trainer.train(0, 1)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )
    try:
        assert process.wait(timeout=60) == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with what it has forked
        process.wait()
