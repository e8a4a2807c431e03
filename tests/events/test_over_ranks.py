"""What writers show on two processes."""

import json
import logging
import math
import shutil
from collections import Counter
from pathlib import Path
from random import Random
from statistics import median

import numpy as np
import pytest
import torch
import torch.distributed as dist

from engine import HookBase, TrainerBase
from engine.events import EventWriter, JSONWriter, get_event_storage, storage
from engine.events.joint_plan import Layout
from engine.events.over_ranks import AllRanks, News
from engine.hooks import EvalHook, PeriodicWriter, Priority
from engine.parallel import comm

ACCURACY = 100 * 35 / 36
SINGLE = ("send", "recv")
COLLECTIVES = ("all_reduce", "all_gather_object", "gather_object", "broadcast", "gather", "reduce")


class Steps(TrainerBase):
    """Puts what a function of the iteration and the rank returns."""

    def __init__(self, numbers, folder: Path, *hooks: HookBase, period: int = 20) -> None:
        super().__init__()
        self.numbers = numbers
        self.file = folder / "metrics.json"
        writers = [JSONWriter(self.file)] if comm.is_main_process() else []
        self.register_hooks([PeriodicWriter(writers, period, over_ranks=True), *hooks])

    def run_step(self) -> None:
        self.storage.put_scalars(**self.numbers(self.iter, comm.get_rank()))

    def lines(self) -> list[dict]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]


class Evaluation(HookBase):
    """Puts a result on all ranks and one on rank 0 in the middle of a period, and at the end."""

    def after_step(self) -> None:
        if self.trainer.iter == 6:
            self._evaluate()

    def after_train(self) -> None:
        self._evaluate()

    def _evaluate(self) -> None:
        self.trainer.storage.put_scalar("accuracy", ACCURACY, smoothing_hint=False)
        if comm.is_main_process():
            self.trainer.storage.put_scalar("on_rank_0", ACCURACY / 3, smoothing_hint=False)
        self.trainer.after_eval({})


class Failing(HookBase):
    def after_train(self) -> None:
        if comm.get_rank() == 1:
            raise ZeroDivisionError


class SaveAt12(HookBase):
    """Keeps what rank 0 saves in the middle of a period, and gives it to all ranks."""

    priority = Priority.LOWEST

    def after_step(self) -> None:
        if self.trainer.iter == 12:
            self.trainer.storage.join_ranks()
            self.state = comm.all_gather(self.trainer.state_dict())[0]


class OwnEvaluation(EvalHook):
    """Stands on rank 0 for the EvalHook of the others."""


class PlainWriter(EventWriter):
    """Of a user's, with the usual arguments."""

    def __init__(self, window_size=None) -> None:
        self._window_size = window_size
        self.records: dict[int, dict[str, float]] = {}

    def write(self) -> None:
        self.records |= get_event_storage().unwritten(self, self._window_size)


class Saving(HookBase):
    """Saves after each step; registered when training begins."""

    def after_step(self) -> None:
        self.trainer.gather_random_states(self)
        self.count = len(self.trainer.state_dict()["random_states"])


class RegistersLate(HookBase):
    def __init__(self) -> None:
        self.saving = Saving()

    def before_train(self) -> None:
        self.trainer.register_hooks([self.saving])


class CountCollectives(HookBase):
    """The collectives and messages of each step that had some."""

    priority = Priority.LOWEST

    def __init__(self) -> None:
        self.by_step: dict[int, Counter[str]] = {}
        self._counts: Counter[str] = Counter()
        for owner, names in ((dist.ProcessGroup, SINGLE), (dist, COLLECTIVES)):
            for name in names:
                setattr(owner, name, self._counted(name, getattr(owner, name)))

    def _counted(self, name, function):
        def call(*args, **kwargs):
            self._counts[name] += 1
            return function(*args, **kwargs)

        return call

    def before_step(self) -> None:
        self._counts.clear()

    def after_step(self) -> None:
        if self._counts:
            self.by_step[self.trainer.iter] = Counter(self._counts)


def usual(iteration: int, rank: int) -> dict[str, float]:
    return {
        "loss": loss(iteration, rank),
        "time": 0.1 + 0.1 * ((iteration + rank) % 2),
        "data_time": 0.001 if rank != 1 else 0.031,
        "rank_data_time": float(rank),
        "rank_loss": float(rank),
    }


def loss(iteration: int, rank: int) -> float:
    """Such that the mean of the ranks' medians is not the median of their means."""
    return (iteration * (rank + 3) * 7 % 11) / 7


def uneven(iteration: int, rank: int) -> dict[str, float]:
    """Names that one rank has, that come late or once, or in turn on the two."""
    numbers = {}
    if rank > 0:
        numbers["not_on_rank_0"] = float(rank)
    if rank == 1 and iteration >= 7:
        numbers["late"] = float(iteration)
    if iteration == 12:
        numbers["long_ago"] = float(rank)
    if iteration % 2 == rank:
        numbers["in_turn"] = float(iteration)
    return numbers


def with_nan(iteration: int, rank: int) -> dict[str, float]:
    return {"bad": math.nan if (iteration, rank) == (4, 1) else 1.0, "good": 1.0}


def many(iteration: int, rank: int) -> dict[str, float]:
    return {f"metric{number}": float(number * rank) for number in range(100)}


class Scenario:
    """Metrics that come on all ranks, on one, by chance, now and then, early, or in turn."""

    NAMES = ("a", "b", "c", "d", "data_time")

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.seed = seed
        self.period = random.choice([1, 3, 7, 20, 50, 100])
        self.steps = random.choice([10, 60, 130, 210])
        kinds = ("all", "one", "chance", "now and then", "early", "in turn")
        if seed % 4 == 0:  # each step puts the same names, which is quicker
            kinds = ("all",)
        self.kinds = {name: (random.choice(kinds), random.randint(2, 33)) for name in self.NAMES}

    def puts(self, rank: int) -> list[dict[str, float]]:
        """By iteration."""
        random = Random(1000 * self.seed + rank)
        rows = []
        for iteration in range(self.steps):
            row = {}
            for name, (kind, number) in self.kinds.items():
                value, chance = random.random(), random.random()
                is_put = {
                    "all": True,
                    "one": rank == number % 2,
                    "chance": chance < 0.3,
                    "now and then": iteration % number == 0,
                    "early": iteration < number,
                    "in turn": iteration // number % 2 == rank,
                }
                if is_put[kind]:
                    row[name] = value
            rows.append(row)
        return rows

    def expected(self) -> list[dict[str, float]]:
        """The lines of a process that would have put the mean, or of times the largest."""
        rows = list(zip(self.puts(0), self.puts(1), strict=True))
        lines: dict[int, dict[str, float]] = {}
        history: dict[str, list[tuple[int, float]]] = {}
        for iteration, ranks in enumerate(rows):
            for name in self.NAMES:
                if values := [row[name] for row in ranks if name in row]:
                    mean = sum(values) / len(values)
                    joint = max(values) if name == "data_time" else mean
                    history.setdefault(name, []).append((iteration, joint))
            if (iteration + 1) % self.period == 0 or iteration == self.steps - 1:
                for name, points in history.items():
                    latest = points[-1][0]
                    recent = [value for at, value in points if at > latest - 20]
                    lines.setdefault(latest, {}).setdefault(name, median(recent))
        return [{"iteration": at, **lines[at]} for at in sorted(lines)]


def joined_lines(lines: list[dict[str, float]]) -> list[dict[str, float]]:
    """Lines of one iteration as one, in the order of iterations."""
    by_iteration: dict[int, dict[str, float]] = {}
    for line in lines:
        by_iteration.setdefault(line["iteration"], {}).update(line)
    return [by_iteration[at] for at in sorted(by_iteration)]


class ReadsEachStep(HookBase):
    def after_step(self) -> None:
        self.trainer.storage.sync()


class PutsForIteration3(HookBase):
    """Now and then, as one that compares with a fixed baseline."""

    def after_step(self) -> None:
        if self.trainer.iter % 10 == 9:
            self.trainer.storage.put_scalar("baseline", self.trainer.iter / 2, cur_iter=3)


class BeforeTraining(HookBase):
    def before_train(self) -> None:
        self.trainer.storage.put_scalar("parameters", 10.0 + comm.get_rank(), smoothing_hint=False)


def work(rank: int, folder: Path) -> dict:
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("engine").addHandler(handler)
    seen = {}

    def train(case: str, numbers, steps: int, *hooks: HookBase, period: int, saved=None) -> None:
        (folder / case).mkdir(exist_ok=True)
        trainer = Steps(numbers, folder / case, *hooks, period=period)
        if saved:
            trainer.load_state_dict(saved)
        try:
            trainer.train(trainer.iter + 1 if saved else 0, steps)
        except (ValueError, ZeroDivisionError, RuntimeError) as error:
            seen["error"] = f"{type(error).__name__}: {error}"
        seen[case] = trainer.lines() if rank == 0 else sorted(trainer.storage.histories())

    train("usual", usual, 45, period=20)
    train("short periods", usual, 45, period=3)
    with torch.device("meta"):  # stands for a GPU, as of `torch.set_default_device("cuda")`
        train("another default device", usual, 45, period=20)
    train("uneven", uneven, 100, period=50)
    train("nan", with_nan, 10, period=5)
    train("evaluation", usual, 10, Evaluation(), period=10)
    saving = SaveAt12()
    train("straight", usual, 25, saving, period=5)
    if rank == 0:
        shutil.copytree(folder / "straight", folder / "resumed")
    comm.synchronize()
    train("resumed", usual, 25, period=5, saved=saving.state)
    own = [PeriodicWriter([JSONWriter(folder / "own.json")], 7)] if rank == 0 else []
    train("beside one's own", usual, 20, *own, period=20)
    train("before training", usual, 5, BeforeTraining(), period=5)
    plain, late = PlainWriter(), RegistersLate()
    evaluation = (OwnEvaluation if rank == 0 else EvalHook)(3, dict)
    second = PeriodicWriter([plain], 5, over_ranks=True)
    train("hooks of users", usual, 5, evaluation, second, late, period=5)
    seen["plain"], seen["random states"] = plain.records.get(4), late.saving.count
    train("of another iteration", usual, 50, PutsForIteration3(), period=10)
    train("one rank", usual, 5, *([EvalHook(1, dict)] if rank == 1 else []), period=5)
    seen["refusal"] = seen.pop("error")
    train("uneven lengths", usual, 5 + rank, period=5)
    seen["uneven lengths"] = seen.pop("error")
    for seed in range(60):
        scenario = Scenario(seed)
        puts = scenario.puts(rank)
        reading = [ReadsEachStep()] if seed % 3 == 0 else []
        numbers = lambda at, _, puts=puts: puts[at]  # noqa: E731
        storage.MANY_TOGETHER = 2 if seed % 2 else 10
        train(str(seed), numbers, scenario.steps, *reading, period=scenario.period)
    counting = CountCollectives()
    train("many", many, 20, counting, period=5)
    seen["collectives"] = counting.by_step
    seen["warnings"] = warnings
    train("failed", usual, 5, Failing(), period=5)
    return seen


def smoothed_mean(iteration: int) -> float:
    steps = range(max(iteration - 19, 0), iteration + 1)
    return median(sum(loss(step, rank) for rank in range(2)) / 2 for step in steps)


@pytest.mark.parametrize("case", ["usual", "short periods", "another default device"])
def test_a_metric_is_the_mean_over_ranks_smoothed_over_the_window(processes, case):
    lines = processes[0][case]
    assert len(lines) == (15 if case == "short periods" else 3)
    for line in lines:
        assert line["loss"] == pytest.approx(smoothed_mean(line["iteration"]))


def test_what_is_put_for_another_iteration_is_written_there(processes):
    lines = [line for line in processes[0]["of another iteration"] if "baseline" in line]
    assert [line["iteration"] for line in lines] == [3] * 5
    assert [line["baseline"] for line in lines] == [4.5, 7.0, 9.5, 12.0, 14.5]


def test_a_time_is_that_of_the_slowest_rank(processes):
    for line in processes[0]["usual"]:
        assert line["time"] == pytest.approx(0.2)  # another rank in each step
        assert line["data_time"] == 0.031


def test_the_data_time_of_a_rank_stays_its_own(processes):
    assert {line["rank_data_time"] for line in processes[0]["usual"]} == {0.0}


def test_the_loss_of_a_model_that_ranks_is_a_mean_as_any_other(processes):
    assert {line["rank_loss"] for line in processes[0]["usual"]} == {0.5}


def test_a_rank_that_others_wait_for_is_named(processes):
    told = [warning for warning in processes[0]["warnings"] if "is slow" in warning]
    assert told
    assert told[0].startswith("Rank 1 (on ")
    assert "its data_time is 31.0 ms on average, that of the median rank 1.0 ms" in told[0]
    assert not [warning for warning in processes[1]["warnings"] if "is slow" in warning]


def test_a_mean_is_over_those_ranks_that_have_the_metric(processes):
    assert processes[0]["uneven"] == [
        {"iteration": 12, "long_ago": 0.5},
        {"iteration": 49, "in_turn": 39.5, "late": 39.5, "not_on_rank_0": 1.0},
        {"iteration": 99, "in_turn": 89.5, "late": 89.5, "not_on_rank_0": 1.0},
    ]


@pytest.mark.parametrize("seed", range(60))
def test_lines_are_those_of_one_process_with_the_means(processes, seed):
    lines, expected = joined_lines(processes[0][str(seed)]), Scenario(seed).expected()
    assert len(lines) == len(expected)
    for line, one in zip(lines, expected, strict=True):
        assert line == pytest.approx(one)


def test_a_writer_of_rank_0_alone_asks_nobody(processes):
    assert [line["iteration"] for line in processes[0]["beside one's own"]] == [19]


def test_hooks_and_writers_of_users_take_part(processes):
    assert processes[0]["plain"]["loss"] == pytest.approx(smoothed_mean(4))
    assert processes[0]["random states"] == 2


def test_writers_of_rank_0_alone_write_what_is_of_all_ranks(processes):
    assert processes[1]["plain"] is None


def test_a_hook_that_waits_for_all_ranks_must_be_on_all(processes):
    assert {process["refusal"] for process in processes} == {
        "ValueError: EvalHook waits for all ranks, so all must have it: "
        "there are 0 on rank 0, 1 on rank 1"
    }


def test_ranks_that_would_not_end_together_are_refused(processes):
    for process in processes:
        assert "ranks would train to different iterations: [5, 6]" in process["uneven lengths"]


def test_what_hooks_put_before_training_is_joined_too(processes):
    assert processes[0]["before training"][0]["parameters"] == 10.5


def test_other_ranks_learn_no_names(processes):
    assert processes[1]["uneven"] == ["in_turn", "late", "long_ago", "not_on_rank_0"]


def test_nan_on_one_rank_is_seen(processes):
    assert [line["bad"] for line in processes[0]["nan"]] == [None, None]
    assert [line["good"] for line in processes[0]["nan"]] == [1.0, 1.0]


def test_results_of_an_evaluation_are_written_unchanged(processes):
    lines = {line["iteration"]: line for line in processes[0]["evaluation"]}
    assert lines.keys() == {6, 9, 10}
    for iteration in (6, 10):
        assert lines[iteration]["accuracy"] == ACCURACY
        assert lines[iteration]["on_rank_0"] == ACCURACY / 3
    assert "accuracy" not in lines[9]


def test_a_resumed_run_has_the_lines_it_would_have_had(processes):
    assert [line["iteration"] for line in processes[0]["straight"]] == [4, 9, 14, 19, 24]
    assert processes[0]["resumed"] == processes[0]["straight"]


def test_a_hundred_metrics_take_one_message_where_they_are_written(processes):
    for way, process in zip(("recv", "send"), processes, strict=True):
        new_names, *writes = process["collectives"].items()
        assert new_names == ("4", {way: 2})  # the second is longer than any before
        assert writes == [(step, {way: 1}) for step in ("9", "14", "19")]
    assert processes[0]["many"][-1]["metric99"] == 49.5


def test_a_rank_that_failed_is_not_waited_for(processes):
    errors = [process["error"].partition(":")[0] for process in processes]
    assert errors == ["RuntimeError", "ZeroDivisionError"]  # the connection was closed
    assert [line["iteration"] for line in processes[0]["failed"]] == [4]


def test_a_step_that_is_long_as_it_waits_for_others_names_no_rank(log):
    hints = {"time": True, "data_time": True}
    layout = Layout(places=np.arange(20) % 2, ages=9 - np.arange(20) // 2)
    messages = [
        (News(host, hints, layout), np.full(20, seconds).tobytes())
        for host, seconds in {"first": 0.01, "second": 0.05}.items()
    ]
    AllRanks(window=10).join(messages, iteration=9)
    assert "its data_time is 50.0 ms" in log.text
    assert "its time is" not in log.text
