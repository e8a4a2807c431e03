"""TrainerBase when something fails: the first error wins, and every hook that began ends."""

import json
import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine import EventStorage, TrainerBase, get_event_storage
from engine.events import EventWriter
from engine.hooks import CallbackHook, PeriodicWriter
from engine.hooks.base import POINTS
from small_trainers import Evaluation, Steps, at, fail, recorder

ROOT = Path(__file__).parents[1]


class Writer(EventWriter):
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def rewind(self, iteration: int) -> None:
        self.asked.append(f"rewind {iteration}")

    def write(self) -> None:
        self.asked.append("write")

    def close(self) -> None:
        self.asked.append("close")


def notes_of(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


@pytest.mark.parametrize("point", POINTS)
def test_a_hook_that_fails_at_any_point_spoils_no_other_hooks_end(point):
    calls: list[str] = []
    writer = Writer()
    failing = CallbackHook(**{"after_train": lambda t: calls.append("failing"), point: fail})
    trainer = Steps(
        recorder(calls, "before "),
        failing,
        recorder(calls, "after "),
        PeriodicWriter([writer]),
        Evaluation(at=1),
        epoch_length=2,
    )
    with pytest.raises(OSError, match="disk is full") as caught:
        trainer.train(0, 4)
    ended = [call.split()[0] for call in calls if "after_train" in call or call == "failing"]
    is_ended_well = point not in ("before_train", "after_train")
    assert ended == (["before", "failing", "after"] if is_ended_well else ["before", "after"])
    assert writer.asked[-2:] == ["write", "close"]
    assert notes_of(caught.value) == []


@pytest.mark.parametrize("point", POINTS[:-4])
def test_the_first_error_comes_out_with_the_later_ones_attached(point, log):
    def fail_late(name: str):
        def after_train(trainer: TrainerBase) -> None:
            raise RuntimeError(f"late error of {name}")

        return CallbackHook(after_train=after_train)

    writer = Writer()
    trainer = Steps(
        CallbackHook(**{point: fail}),
        fail_late("one"),
        fail_late("two"),
        PeriodicWriter([writer]),
        epoch_length=1,
    )
    with pytest.raises(OSError, match="disk is full") as caught:
        trainer.train(0, 2)
    assert writer.asked[-1] == "close"
    for name in ("one", "two"):
        assert f"RuntimeError: late error of {name}" in log.text
        if sys.version_info >= (3, 11):
            assert f"late error of {name}" in "\n".join(notes_of(caught.value))


def test_all_hooks_start_and_the_first_failure_to_start_comes_out(log):
    def fail_otherwise(trainer: TrainerBase) -> None:
        raise KeyError("another")

    calls: list[str] = []
    trainer = Steps(
        CallbackHook(before_train=fail, after_train=lambda t: calls.append("never")),
        CallbackHook(before_train=fail_otherwise, after_train=lambda t: calls.append("never")),
        recorder(calls),
    )
    with pytest.raises(OSError, match="disk is full"):
        trainer.train(0, 2)
    assert calls == ["before_train 0", "after_train 0"]
    assert "KeyError: 'another'" in log.text


def test_hooks_that_a_trainer_never_came_to_start_are_not_ended():
    class Unready(Steps):
        def before_train(self) -> None:
            raise OSError("no such folder")

    calls: list[str] = []
    with pytest.raises(OSError, match="no such folder"):
        Unready(recorder(calls)).train(0, 2)
    assert calls == []


def test_a_failed_run_is_known_as_such_to_after_train_also_in_its_last_iteration():
    seen = []
    trainer = Steps(
        CallbackHook(after_train=lambda t: seen.append((t.failed, t.iter))),
        CallbackHook(after_backward=at(4, fail)),
    )
    with pytest.raises(OSError, match="disk is full"):
        trainer.train(0, 5)
    assert seen == [(True, 4)]


def test_an_error_is_logged_with_its_iteration_and_traceback(log):
    with pytest.raises(OSError, match="disk is full"):
        Steps(CallbackHook(after_step=at(3, fail))).train(0, 9)
    record = next(record for record in log.records if record.levelno == logging.ERROR)
    assert record.message == "Exception during training, at iteration 3"
    assert record.exc_info[0] is OSError


def test_after_an_error_no_storage_is_open():
    with EventStorage() as outer:
        with pytest.raises(OSError, match="disk is full"):
            Steps(CallbackHook(after_step=fail)).train(0, 9)
        assert get_event_storage() is outer


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("point", [*POINTS[:6], "after_train"])
def test_an_interrupt_at_any_point_still_ends_every_hook(point, kind):
    def interrupt(trainer: TrainerBase) -> None:
        raise kind

    calls: list[str] = []
    writer = Writer()
    trainer = Steps(
        recorder(calls),
        CallbackHook(**{point: interrupt}),
        PeriodicWriter([writer]),
        epoch_length=1,
    )
    with pytest.raises(kind):
        trainer.train(0, 2)
    assert calls[-1].startswith("after_train")
    assert writer.asked[-2:] == ["write", "close"]


def test_an_interrupt_in_after_train_does_not_hide_the_error_before_it():
    def interrupt(trainer: TrainerBase) -> None:
        raise KeyboardInterrupt

    writer = Writer()
    trainer = Steps(CallbackHook(after_step=fail, after_train=interrupt), PeriodicWriter([writer]))
    with pytest.raises(OSError, match="disk is full"):
        trainer.train(0, 2)
    assert writer.asked[-1] == "close"


SIGINT_SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
from engine import TrainerBase
from engine.events import JSONWriter
from engine.hooks import CallbackHook, PeriodicWriter

class Slow(TrainerBase):
    def run_step(self):
        self.storage.put_scalar("x", self.iter)
        if self.iter == 7:
            print("ready", flush=True)
            time.sleep(60)

trainer = Slow()
trainer.register_hooks([
    PeriodicWriter([JSONWriter(sys.argv[1])], period=5),
    CallbackHook(after_train=lambda trainer: print("after_train", trainer.iter, trainer.failed)),
])
trainer.train(0, 100)
"""


def test_ctrl_c_ends_the_process_with_files_written(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", SIGINT_SCRIPT, str(tmp_path / "metrics.json")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out == "after_train 7 True\n"
    assert process.returncode == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "unclosed file" not in err
    lines = (tmp_path / "metrics.json").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [4, 7]
