"""StopOnSignal and TimeLimit. What is left in the middle and resumed: tests/test_run_state.py."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engine import HookBase, TrainerBase
from engine.hooks import CallbackHook, EvalHook, StopOnSignal, TimeLimit, stopping
from engine.hooks.stopping import REQUEUE_EXIT_CODE, process_age
from small_trainers import OwnLoop

ROOT = Path(__file__).parents[2]
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]


class Steps(TrainerBase):
    """Calls a function in each step."""

    def __init__(self, step, *hooks: HookBase) -> None:
        super().__init__()
        self.step = step
        self.register_hooks(hooks)

    def run_step(self) -> None:
        self.step(self)


def raising(number: int, at: int):
    """A step in which the process gets a signal, once the iteration `at` is reached."""
    return lambda trainer: signal.raise_signal(number) if trainer.iter >= at else None


@pytest.fixture(autouse=True)
def handlers():
    """The handlers before the test, which must also be those after it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield before
    after = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


# --- signals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_ends_the_run_after_the_step_it_came_in(number, log, capfd):
    trainer = Steps(raising(number, at=3), StopOnSignal())
    trainer.train(0, 9)
    assert (trainer.iter, trainer.failed, trainer.requeue) == (4, False, True)
    assert trainer.stop_reasons == [f"{number.name} received"]
    assert f"Stopping after 4 of 9 iterations: {number.name} received" in log.text
    assert (
        f"{number.name}: stopping after this step; again to end at once" in capfd.readouterr().err
    )


@pytest.mark.parametrize("name", ["SIGTREM", "sigterm"])
def test_a_signal_that_no_system_has_is_refused_with_the_nearest_name(name):
    with pytest.raises(ValueError, match=f"there is no signal '{name}'; did you mean SIGTERM"):
        StopOnSignal(["SIGINT", name])


def test_signals_that_no_process_can_receive_are_refused():
    with pytest.raises(ValueError, match="no process can receive SIGKILL"):
        StopOnSignal(["SIGKILL"])


def test_one_name_is_no_list_of_names():
    with pytest.raises(ValueError, match=r"a list of names, such as \[SIGTERM\]"):
        StopOnSignal("SIGTERM")


def test_a_signal_that_only_other_systems_have_is_ignored():
    names = ["SIGBREAK", "SIGINFO", "SIGTERM"]  # of Windows, of macOS, of all
    trainer = Steps(raising(signal.SIGTERM, at=3), StopOnSignal(names))
    trainer.train(0, 9)
    assert trainer.stop_reasons == ["SIGTERM received"]


def test_there_is_no_evaluation_after_a_signal_but_one_after_a_stop():
    evaluated = []
    evaluation = EvalHook(0, lambda: evaluated.append(1))
    Steps(raising(signal.SIGTERM, at=3), StopOnSignal(), evaluation).train(0, 9)
    assert evaluated == []
    trainer = Steps(lambda trainer: trainer.stop("enough"), evaluation)
    trainer.train(0, 9)
    assert evaluated == [1]
    assert not trainer.requeue


def test_the_second_ctrl_c_interrupts(log):
    def step(trainer: TrainerBase) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    trainer = Steps(step, StopOnSignal())
    with pytest.raises(KeyboardInterrupt):
        trainer.train(0, 9)
    assert (trainer.iter, trainer.failed, trainer.requeue) == (0, True, False)


@pytest.mark.parametrize("trains_before", [False, True])
def test_a_signal_ends_a_loop_of_ones_own_at_once(trains_before):
    """No other loop than that of `train` asks whether to stop."""

    class Own(Steps):
        def train_in_own_loop(self) -> None:
            OwnLoop.train(self, 0, 9)

    trainer = Own(lambda trainer: None, StopOnSignal())
    if trains_before:
        trainer.train(0, 2)
    trainer.step = raising(signal.SIGINT, at=3)
    with pytest.raises(KeyboardInterrupt):
        trainer.train_in_own_loop()
    assert trainer.iter == 3


def test_another_signal_is_not_the_second_one():
    def step(trainer: TrainerBase) -> None:
        signal.raise_signal(signal.SIGUSR1)  # Slurm warns,
        signal.raise_signal(signal.SIGTERM)  # and comes back later

    trainer = Steps(step, StopOnSignal())
    trainer.train(0, 9)
    assert trainer.stop_reasons == ["SIGUSR1 received", "SIGTERM received"]
    assert not trainer.failed


def test_without_the_hook_ctrl_c_interrupts_as_ever():
    with pytest.raises(KeyboardInterrupt):
        Steps(raising(signal.SIGINT, at=1)).train(0, 9)


@pytest.mark.parametrize("point", ["before_train", "after_step", "after_train"])
def test_the_handlers_are_put_back_after_an_error_too(point, handlers):
    def fail(trainer: TrainerBase) -> None:
        raise OSError("disk is full")

    trainer = Steps(lambda trainer: None, StopOnSignal(), CallbackHook(**{point: fail}))
    with pytest.raises(OSError, match="disk is full"):
        trainer.train(0, 2)
    assert {number: signal.getsignal(number) for number in SIGNALS} == handlers


def test_a_signal_that_was_ignored_stays_ignored(handlers):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    trainer = Steps(raising(signal.SIGINT, at=0), StopOnSignal())
    trainer.train(0, 3)
    signal.signal(signal.SIGINT, handlers[signal.SIGINT])
    assert (trainer.iter, trainer.stop_reasons) == (3, [])


def test_signals_can_be_chosen():
    trainer = Steps(raising(signal.SIGUSR1, at=1), StopOnSignal(["SIGUSR1"]))
    handled = []
    note = CallbackHook(before_step=lambda t: handled.append(signal.getsignal(signal.SIGTERM)))
    trainer.register_hooks([note])
    trainer.train(0, 3)
    assert trainer.iter == 2
    assert handled == [signal.getsignal(signal.SIGTERM)] * 2


def test_outside_the_main_thread_a_run_goes_without(log):
    trainer = Steps(lambda trainer: None, StopOnSignal())
    thread = threading.Thread(target=trainer.train, args=(0, 3))
    thread.start()
    thread.join()
    assert trainer.iter == 3
    assert "it is not in the main thread" in log.text


# --- signals to a whole process ----------------------------------------------------------------

PROGRAM = """
import signal, sys, time
import torch
from torch import nn
from engine import SimpleTrainer, hooks
from engine.checkpoint import Checkpointer
from engine.data import build_train_loader
from engine.hooks.stopping import REQUEUE_EXIT_CODE

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
torch.set_num_threads(1)
stays = sys.argv[3] == "stays"


class Model(nn.Linear):
    def forward(self, batch):
        if trainer.iter == 5:
            print("ready", flush=True)
            while stays or not trainer.stop_reasons:
                time.sleep(0.01)
        return super().forward(batch).square().mean()


model = Model(1, 1)
data = build_train_loader([torch.ones(1)] * 64, total_batch_size=2, num_workers=int(sys.argv[2]))
trainer = SimpleTrainer(model, data, torch.optim.SGD(model.parameters(), 0.01))
checkpointer = Checkpointer(model, sys.argv[1], trainer=trainer)
trainer.register_hooks([hooks.PeriodicCheckpointer(checkpointer, 100), hooks.StopOnSignal()])
trainer.train(0, 1000)
sys.exit(REQUEUE_EXIT_CODE if trainer.requeue else 0)
"""


def start(folder: Path, workers: int, ends: str = "", **environment: str) -> subprocess.Popen[str]:
    """Starts the program in a process group of its own, and waits until it is in a step."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), str(workers), ends],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_signals_to_the_whole_group_leave_the_workers_to_the_last_step(tmp_path):
    process = start(tmp_path, workers=2)
    for number in (signal.SIGUSR1, signal.SIGINT):  # as Slurm and Ctrl-C do
        os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == REQUEUE_EXIT_CODE == 75, errors
    assert [path.name for path in tmp_path.glob("*.pth")] == ["model_0000005.pth"]


def test_the_second_signal_ends_the_process_with_that_signal(tmp_path):
    process = start(tmp_path, workers=0, ends="stays")
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert "again to end at once" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM  # a shell says 128 + 15
    assert list(tmp_path.glob("*.pth")) == []


@pytest.mark.slow
def test_what_torchrun_passes_on_is_no_second_signal(tmp_path):
    process = start(tmp_path, workers=0, ends="stays", TORCHELASTIC_RUN_ID="1")
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(1)
    assert process.poll() is None
    time.sleep(stopping.MOMENT)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert errors.count("again to end at once") == 1


# --- the time limit ----------------------------------------------------------------------------


class Clock:
    """The time of a process that began at 0; it passes where a test says so."""

    now = 0.0

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(stopping, "time", clock)
    monkeypatch.setattr(stopping, "process_age", clock.monotonic)
    return clock


def test_a_run_ends_before_its_time_is_up(clock):
    clock.now = 30  # for imports and data
    trainer = Steps(lambda trainer: clock.pass_time(1), TimeLimit("1 min 40s"))
    trainer.train(0, 1000)
    assert clock.now == 98  # two steps, and a save as long as one, would just be too much
    assert trainer.stop_reasons == ["the time limit of 1 min 40s is near"]
    assert trainer.requeue


def test_room_is_left_for_a_save_as_long_as_the_longest(clock):
    trainer = Steps(lambda trainer: clock.pass_time(20 if trainer.iter == 5 else 1))
    trainer.register_hooks([TimeLimit("100s")])
    trainer.train(0, 1000)
    assert 75 < clock.now <= 80


def test_the_first_step_is_not_the_usual_one(clock):
    trainer = Steps(lambda trainer: clock.pass_time(80 if trainer.iter == 0 else 1))
    trainer.register_hooks([TimeLimit("100s")])
    trainer.train(0, 1000)
    assert clock.now > 95


def test_a_limit_that_is_past_leaves_one_step(clock):
    clock.now = 50
    trainer = Steps(lambda trainer: None, TimeLimit("45s"))
    trainer.train(0, 10)
    assert trainer.iter == 1


def test_a_limit_that_is_far_changes_nothing():
    trainer = Steps(lambda trainer: None, TimeLimit("1000 d"))
    trainer.train(0, 10)
    assert (trainer.iter, trainer.stop_reasons) == (10, [])


def test_an_evaluation_is_left_when_the_time_is_up_and_is_no_part_of_a_step(clock):
    evaluated_at = []

    def evaluate() -> None:
        evaluated_at.append(trainer.iter)
        for _ in range(30):
            trainer.before_eval_step()
            clock.pass_time(1)

    trainer = Steps(lambda trainer: clock.pass_time(1), EvalHook(2, evaluate), TimeLimit("100s"))
    trainer.train(0, 1000)
    assert evaluated_at == [1, 3, 5, 7]
    assert (trainer.iter, trainer.requeue, trainer.failed) == (8, True, False)
    assert 98 <= clock.now <= 100


@pytest.mark.parametrize("limit", ["", "soon", "3h50"])
def test_a_limit_that_is_none_is_refused_at_once(limit):
    with pytest.raises(ValueError, match="a length of time is above 0 and like '3h50min'"):
        TimeLimit(limit)


def test_the_age_is_that_of_the_process_not_of_the_import():
    assert process_age() > time.monotonic() - stopping._IMPORTED


def test_a_process_that_was_launched_is_as_old_as_its_launcher(monkeypatch):
    monkeypatch.setenv(stopping.STARTED_AT, str(time.monotonic() - 1e6))
    assert process_age() == pytest.approx(1e6, abs=100)


def test_a_process_of_torchrun_is_as_old_as_its_parent():
    code = "from engine.hooks.stopping import process_age; print(process_age())"
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": "none"}
    before = process_age()
    shown = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=environment)
    assert before < float(shown) < process_age()
