"""A run of two processes stops on both together."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from engine import HookBase, SimpleTrainer, TrainerBase
from engine.checkpoint import Checkpointer
from engine.hooks import CallbackHook, EvalHook, PeriodicCheckpointer, StopOnSignal, TimeLimit
from engine.parallel import comm, joint_flags
from engine.stop_decision import StopDecision


class Steps(TrainerBase):
    """Talks to the other process in each step: a rank that goes on alone would wait for ever."""

    def __init__(self, *hooks: HookBase) -> None:
        super().__init__()
        self.register_hooks(hooks)

    def run_step(self) -> None:
        comm.synchronize()


class Gathering(PeriodicCheckpointer):
    """Has the random states of both ranks saved."""

    def after_step(self) -> None:
        self.trainer.gather_random_states(self)
        super().after_step()


def work(rank: int, folder: Path) -> dict:
    joint_flags.SECONDS = 0  # ranks talk in each step

    def stop_at(iteration: int, action) -> CallbackHook:
        """Acts on rank 1 alone."""

        def act(trainer: TrainerBase) -> None:
            if rank == 1 and trainer.iter == iteration:
                action(trainer)

        return CallbackHook(after_step=act)

    def end_of(*hooks: HookBase, start: int = 0) -> dict:
        evaluated = []
        trainer = Steps(*hooks, EvalHook(0, lambda: evaluated.append(comm.all_gather(rank))))
        trainer.train(start, 30)
        return {
            "iter": trainer.iter,
            "requeue": trainer.requeue,
            "reasons": trainer.stop_reasons,
            "evaluated": len(evaluated),
            "max_iter": trainer.max_iter,
        }

    def early_stop(trainer: TrainerBase) -> None:
        trainer.storage.early_stop = True

    def get_signal(trainer: TrainerBase) -> None:
        signal.raise_signal(signal.SIGTERM)

    def stop(trainer: TrainerBase) -> None:
        trainer.stop("enough")

    def set_length(length: int) -> Callable[[TrainerBase], None]:
        def set_it(trainer: TrainerBase) -> None:
            trainer.max_iter = length

        return set_it

    def set_in_evaluation(length: int) -> EvalHook:
        def evaluate() -> None:
            if rank == 1 and hook.trainer.iter == 4:
                hook.trainer.max_iter = length
            comm.synchronize()

        hook = EvalHook(5, evaluate, eval_after_train=False)
        return hook

    def different_lengths(trainer: TrainerBase) -> None:
        trainer.max_iter = 30 + rank

    def refusal_of(*hooks: HookBase, start: int = 0) -> str:
        with pytest.raises(ValueError, match="different iterations") as raised:
            end_of(*hooks, start=start)
        return str(raised.value)

    def wait_long(trainer: TrainerBase) -> None:
        time.sleep(0.1)

    def stop_in_evaluation() -> EvalHook:
        def evaluate() -> None:
            if rank == 1:
                trainer_of.trainer.stop("no time", requeue=True)
            trainer_of.trainer.before_eval_step()
            comm.synchronize()

        trainer_of = EvalHook(5, evaluate, eval_after_train=False)
        return trainer_of

    seen = {
        "nothing": end_of(),
        "stop": end_of(stop_at(5, stop)),
        "early_stop": end_of(stop_at(5, early_stop)),
        "signal": end_of(stop_at(5, get_signal), StopOnSignal()),
        "signal in the last step": end_of(stop_at(29, get_signal), StopOnSignal()),
        "both": end_of(
            stop_at(5, stop),
            StopOnSignal(),
            CallbackHook(after_step=lambda t: rank == 0 and t.iter == 5 and get_signal(t)),
        ),
        "time": end_of(TimeLimit("1s") if rank == 1 else CallbackHook()),
        "in an evaluation": end_of(stop_in_evaluation()),
        "before all": end_of(CallbackHook(before_train=stop)),
        "a rank is slow": end_of(stop_at(5, stop), CallbackHook(before_step=wait_long)),
        "shorter": end_of(stop_at(5, set_length(12))),
        "over": end_of(stop_at(5, set_length(3))),
        "longer": end_of(stop_at(5, set_length(35))),
        "longer in the last step": end_of(stop_at(29, set_length(35))),
        "shorter and longer": end_of(
            stop_at(5, set_length(12)), CallbackHook(after_step=set_length(33))
        ),
        "shorter in an evaluation": end_of(set_in_evaluation(8)),
        "shorter from the start": end_of(CallbackHook(before_train=set_length(12))),
        "different starts": refusal_of(start=rank),
        "different from the start": refusal_of(CallbackHook(before_train=different_lengths)),
        "a second run": train_twice(),
        "resumed": resume(rank, folder),
    }
    return seen


def train_twice() -> int:
    """Where the second of two runs ends, the first of which fails at its end."""
    trainer = Steps()
    trainer.after_train = Mock(side_effect=ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        trainer.train(0, 5)
    del trainer.after_train
    trainer.max_iter = 9
    trainer.train(trainer.iter, trainer.max_iter)
    return trainer.iter


class Noisy(nn.Linear):
    """Has dropout, and notes what it draws."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return super().forward(batch + torch.rand(1) + random.random()).square().mean()


def resume(rank: int, folder: Path) -> dict:
    """The weights of a run that went straight, and of runs that were left and resumed."""

    def train(name: str, stop_at: int = -1) -> list[float]:
        torch.manual_seed(0)
        model = DistributedDataParallel(Noisy(2, 1))
        torch.manual_seed(rank)
        random.seed(rank)
        trainer = SimpleTrainer(
            model, [torch.ones(4, 2)], torch.optim.SGD(model.parameters(), 0.01)
        )
        checkpointer = Checkpointer(model, folder / name, trainer=trainer)

        def stop(trainer: TrainerBase) -> None:
            if trainer.iter == stop_at:
                if name == "killed":
                    raise InterruptedError
                if rank == 1:
                    trainer.stop("no time", requeue=True)

        trainer.register_hooks([CallbackHook(after_step=stop), Gathering(checkpointer, 4)])
        trainer.iter = -1
        comm.synchronize()
        checkpointer.resume_or_load("")
        try:
            trainer.train(trainer.iter + 1, 12)
        except InterruptedError:
            checkpointer.wait()
        comm.synchronize()
        return [value for weight in model.parameters() for value in weight.flatten().tolist()]

    straight = train("straight")
    train("stopped", stop_at=5)
    train("killed", stop_at=5)
    return {"straight": straight, "stopped": train("stopped"), "killed": train("killed")}


@pytest.mark.parametrize(
    ("case", "end"),
    [
        ("nothing", (30, False, 1)),
        ("stop", (7, False, 1)),
        ("early_stop", (7, False, 1)),
        ("signal", (7, True, 0)),
        ("signal in the last step", (30, True, 0)),
        ("both", (7, True, 0)),
        ("time", (2, True, 0)),
        ("in an evaluation", (5, True, 0)),
        ("before all", (1, False, 1)),
        ("a rank is slow", (7, False, 1)),
    ],
)
def test_what_one_rank_wants_both_do_a_step_later_or_right_after_an_evaluation(
    processes, case, end
):
    for seen in processes:
        assert (seen[case]["iter"], seen[case]["requeue"], seen[case]["evaluated"]) == end


@pytest.mark.parametrize(
    ("case", "end"),
    [
        ("shorter", 12),
        ("over", 7),
        ("longer", 35),
        ("longer in the last step", 35),
        ("shorter and longer", 33),
        ("shorter in an evaluation", 8),
        ("shorter from the start", 12),
    ],
)
def test_the_length_that_one_rank_sets_is_that_of_all(processes, case, end):
    for seen in processes:
        assert (seen[case]["iter"], seen[case]["max_iter"]) == (end, end)
        assert (seen[case]["evaluated"], seen[case]["reasons"]) == (1, [])


def test_lengths_that_differ_at_the_start_are_refused(processes):
    for seen in processes:
        assert "train to different iterations: [30, 31]" in seen["different from the start"]


def test_starts_that_differ_are_refused(processes):
    for seen in processes:
        assert "train from different iterations: [0, 1]" in seen["different starts"]


def test_ranks_without_a_reason_of_their_own_know_that_of_another(processes):
    assert processes[0]["stop"]["reasons"] == ["enough (on rank 1)"]
    assert processes[1]["stop"]["reasons"] == ["enough"]
    assert processes[0]["signal"]["reasons"] == ["SIGTERM received (on rank 1)"]
    assert processes[0]["both"]["reasons"] == ["SIGTERM received", "enough (on rank 1)"]
    assert processes[0]["nothing"]["reasons"] == processes[1]["nothing"]["reasons"] == []


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_each_rank_of_a_resumed_run_has_its_own_random_state(processes, end):
    for seen in processes:
        assert seen["resumed"][end] == seen["resumed"]["straight"]


def test_a_run_that_follows_one_whose_end_failed_has_its_own_length(processes):
    assert [seen["a second run"] for seen in processes] == [9, 9]


# --- a single process --------------------------------------------------------------------------


def test_a_single_process_decides_at_once():
    decision = StopDecision()
    assert not decision.is_made()
    decision.ask("enough", requeue=False)
    assert decision.is_made()
    decision.settle()
    assert (decision.reasons, decision.final_reasons, decision.requeue) == (
        ["enough"],
        ["enough"],
        False,
    )


def test_a_stop_that_asks_to_be_continued_is_not_for_good():
    decision = StopDecision()
    decision.ask("no time", requeue=True)
    assert not decision.requeue  # until it is settled
    decision.settle()
    assert (decision.is_made(), decision.requeue, decision.final_reasons) == (True, True, [])


def test_the_reasons_of_a_saved_run_hold():
    decision = StopDecision(["enough"], is_made=True)
    assert decision.is_made()
    assert decision.final_reasons == ["enough"]
