import re
import time
from types import SimpleNamespace

import pytest

from engine import TrainerBase
from engine.hooks import CallbackHook, IterationTimer


class Steps(TrainerBase):
    """The step numbers in `slow` take a moment."""

    def __init__(self, *slow: int) -> None:
        super().__init__()
        self.slow = slow

    def run_step(self) -> None:
        if self.iter in self.slow:
            time.sleep(0.02)


def iterations(trainer: TrainerBase) -> list[int]:
    return [iteration for _, iteration in trainer.storage.history("time").values()]


def train(trainer: TrainerBase, hook: IterationTimer, start_iter: int, max_iter: int) -> None:
    trainer.register_hooks([hook])
    trainer.train(start_iter, max_iter)


def test_fifty_iterations_give_48_times():
    trainer = Steps()
    train(trainer, IterationTimer(), 0, 50)
    assert iterations(trainer) == list(range(2, 50))


@pytest.mark.parametrize(("warmup_iter", "first"), [(0, 100), (1, 100), (5, 104)])
def test_the_warm_up_counts_from_the_start_of_the_run(warmup_iter, first):
    trainer = Steps()
    train(trainer, IterationTimer(warmup_iter), 100, 110)
    assert iterations(trainer) == list(range(first, 110))


def test_a_resumed_run_goes_on_with_the_curve(log):
    first, resumed = Steps(), Steps()
    train(first, IterationTimer(), 0, 10)
    resumed.load_state_dict(first.state_dict())
    log.clear()
    train(resumed, IterationTimer(), 10, 15)
    assert iterations(resumed) == list(range(2, 15))
    assert "Overall training speed: 3 iterations" in log.text


def test_the_time_is_that_of_the_step_without_the_hooks():
    trainer = Steps(3)
    trainer.register_hooks([CallbackHook(after_step=lambda t: time.sleep(0.02 * (t.iter == 4)))])
    train(trainer, IterationTimer(), 0, 7)
    times = {at: value for value, at in trainer.storage.history("time").values()}
    assert max(times, key=times.__getitem__) == 3


def test_the_speed_and_the_total_time_are_logged_in_the_words_that_scripts_look_for(log):
    train(Steps(), IterationTimer(), 0, 10)
    speed = r"Overall training speed: 8 iterations in 0:00:\d\d \(\d\.\d{4} s / it\)"
    assert re.search(speed, log.text)
    assert re.search(r"Total training time: 0:00:\d\d \(0:00:\d\d on hooks\)", log.text)


def test_the_speed_is_that_in_samples_too_where_the_loader_says_how_many(log):
    trainer = Steps()
    trainer.data_loader, trainer.accumulate = SimpleNamespace(total_batch_size=4), 2
    train(trainer, IterationTimer(), 0, 10)
    samples = re.search(r"s / it\), (\S+) samples / s", log.text)[1].replace(",", "")
    seconds = trainer.storage.history("time").global_avg()
    assert float(samples) * seconds == pytest.approx(8, rel=0.01)


def test_a_run_shorter_than_the_warm_up_has_no_speed(log):
    trainer = Steps()
    train(trainer, IterationTimer(), 0, 2)
    assert "Overall training speed" not in log.text
    assert "Total training time" in log.text
    assert "time" not in trainer.storage.latest()


def test_a_second_run_is_timed_by_itself(log):
    trainer = Steps()
    train(trainer, IterationTimer(), 0, 10)
    log.clear()
    trainer.train(10, 15)
    assert "Overall training speed: 3 iterations" in log.text


def test_a_run_that_fails_in_its_first_step_is_summed_up_too(log):
    class Failing(TrainerBase):
        def run_step(self) -> None:
            raise OSError("disk is full")

    with pytest.raises(OSError, match="disk is full"):
        train(Failing(), IterationTimer(), 0, 10)
    assert "Total training time" in log.text
