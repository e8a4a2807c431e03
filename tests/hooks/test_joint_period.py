from pathlib import Path

import pytest

from engine.hooks.joint_period import JointPeriod
from engine.parallel import comm
from engine.utils import periods


class Clock:
    """Iterations that take a second each on rank 0, and are told wrongly by other ranks' clocks."""

    iter = 0

    def epoch_of(self, iteration: int) -> int | None:
        return iteration // 10

    def seconds(self) -> float:
        return self.iter * (1.0, 3.7)[comm.get_rank()]


class Uneven(Clock):
    def epoch_of(self, iteration: int) -> int | None:
        return iteration // (100_000 + comm.get_rank())


def due(spec: int | str, iterations: int) -> list[int]:
    clock = Clock()
    periods.monotonic = clock.seconds
    period = JointPeriod(spec)
    found = []
    for clock.iter in range(iterations):
        if period.is_due(clock):
            found.append(clock.iter)
    return found


def work(rank: int, folder: Path) -> dict:
    seen = {str(spec): due(spec, 100) for spec in (30, "2 epoch", 0)}
    asked, all_gather = [], comm.all_gather
    comm.all_gather = lambda data: asked.append(data) or all_gather(data)
    seen["time"] = due("100 s", 450)
    seen["questions"] = len(asked)
    for spec in ("1 epoch", "5; 1 epoch from 10", "0; 5 from 3 epoch"):
        with pytest.raises(ValueError, match="epochs are not equally long: give it in iterations"):
            JointPeriod(spec).is_due(Uneven())
    return seen


def test_time_is_that_of_rank_0_on_all_ranks(processes):
    assert [process["time"] for process in processes] == [[100, 200, 300, 400]] * 2


def test_ranks_talk_in_a_few_iterations_only(processes):
    assert processes[0]["questions"] < 50


@pytest.mark.parametrize(
    ("spec", "iterations"), [("30", [29, 59, 89]), ("2 epoch", [19, 39, 59, 79, 99]), ("0", [])]
)
def test_iterations_and_epochs_are_as_ever(processes, spec, iterations):
    assert [process[spec] for process in processes] == [iterations] * 2


def test_alone_it_is_a_period(monkeypatch):
    monkeypatch.setattr(periods, "monotonic", periods.monotonic)  # undoes what `due` replaces
    assert due("100 s", 450) == [100, 200, 300, 400]
