import copy
from pathlib import Path

import pytest

from engine.hooks import CallbackHook
from engine.hooks.early_stopping import EarlyStopping
from engine.parallel import joint_flags
from engine.train_loop import TrainerBase


class Trainer(TrainerBase):
    """Its step does nothing; after each, and in the end, there is an evaluation with a score."""

    def __init__(self, scores, hook):
        super().__init__()
        self.hook = hook

        def evaluate(trainer):
            trainer.after_eval({"accuracy": scores[min(trainer.iter, 9)]} if scores else {})

        self.register_hooks([CallbackHook(after_step=evaluate, after_train=evaluate), hook])

    def run_step(self):
        pass


SCORES = [0.5, 0.7, 0.6, 0.7, 0.65, 0.9, 0.9, 0.9, 0.9, 0.9]


def test_the_run_stops_after_so_many_evaluations_without_improvement():
    trainer = Trainer(SCORES, EarlyStopping("+accuracy", patience=3))
    trainer.train(0, 10)
    assert trainer.iter == 5
    assert trainer.stop_reasons == ["accuracy has not improved for 3 evaluations"]


def test_an_improvement_starts_the_count_again():
    trainer = Trainer(SCORES, EarlyStopping("accuracy", patience=4, mode="max"))
    trainer.train(0, 10)
    assert (trainer.iter, trainer.hook.best.iteration) == (10, 5)


def test_small_improvements_do_not_count():
    trainer = Trainer([0.50, 0.51, 0.52, 0.53], EarlyStopping("+accuracy", 2, min_delta=0.1))
    trainer.train(0, 10)
    assert trainer.iter == 3


def test_a_resumed_run_stops_where_a_straight_one_does():
    first = Trainer(SCORES, EarlyStopping("+accuracy", patience=3))
    saved = {}
    save = CallbackHook(
        after_step=lambda trainer: saved.update({trainer.iter: copy.deepcopy(trainer.state_dict())})
    )
    first.register_hooks([save], priority="LOWEST")
    first.train(0, 10)
    resumed = Trainer(SCORES, EarlyStopping("+accuracy", patience=3))
    resumed.load_state_dict(saved[3])
    resumed.train(4, 10)
    assert resumed.iter == 5


def test_a_metric_that_never_comes_is_warned_of(log):
    trainer = Trainer(SCORES, EarlyStopping("+acuracy", patience=2))
    trainer.train(0, 10)
    assert trainer.iter == 10
    assert "did you mean accuracy?" in log.text


def test_the_end_of_the_metrics_name_is_enough():
    trainer = Trainer([], hook := EarlyStopping("+accuracy", patience=3))
    scores = iter(SCORES)
    evaluate = CallbackHook(
        after_step=lambda trainer: trainer.after_eval({"classification/accuracy": next(scores)})
    )
    trainer.register_hooks([evaluate])
    trainer.train(0, 10)
    assert (trainer.iter, hook.best.value) == (5, 0.7)


def test_evaluations_without_the_metric_do_not_count():
    trainer = Trainer(SCORES, EarlyStopping("+accuracy", patience=3))
    quick = CallbackHook(after_step=lambda trainer: trainer.after_eval({"quick/loss": 1.0}))
    trainer.register_hooks([quick])
    trainer.train(0, 10)
    assert trainer.iter == 5


def work(rank: int, folder: Path) -> int:
    """Where a rank stops when rank 0 alone has the results."""
    joint_flags.SECONDS = 0  # ranks talk in each step
    trainer = Trainer(SCORES if rank == 0 else [], EarlyStopping("+accuracy", patience=3))
    trainer.train(0, 10)
    return trainer.iter


@pytest.mark.slow
def test_all_ranks_stop_together(processes):
    assert processes == [6, 6]  # what one rank wants both do a step later


def test_patience_is_at_least_one_evaluation():
    with pytest.raises(ValueError, match="1 evaluation or more, got 0"):
        EarlyStopping("+accuracy", patience=0)
