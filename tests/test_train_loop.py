"""TrainerBase: the loop around any step. Errors, state and wrapping have files of their own."""

import json
import re

import pytest

from engine import HookBase, TrainerBase, get_event_storage
from engine.events import JSONWriter
from engine.hooks import CallbackHook, IterationTimer, PeriodicWriter
from engine.hooks.base import POINTS
from small_trainers import Counter, Evaluation, OwnLoop, Steps, at, fail, recorder

# --- the order of things -----------------------------------------------------------------------


def test_every_point_is_called_in_its_place():
    calls: list[str] = []
    trainer = Steps(Evaluation(at=1), recorder(calls), epoch_length=2)
    trainer.train(0, 3)
    assert calls == [
        "before_train 0",
        "before_epoch 0",
        "before_step 0",
        "after_backward 0",
        "after_step 0",
        "before_step 1",
        "after_backward 1",
        "before_eval 1",
        "before_eval_step 1",
        "after_eval_step 1",
        "after_eval 1",
        "after_step 1",
        "after_epoch 1",
        "before_epoch 2",
        "before_step 2",
        "after_backward 2",
        "after_step 2",
        "after_train 3",
    ]


def test_at_every_point_hooks_run_by_priority_then_in_the_order_of_registration():
    calls: list[str] = []
    trainer = Steps(Evaluation(at=0), epoch_length=1)
    trainer.register_hooks([recorder(calls, "third "), recorder(calls, "fourth ")])
    trainer.register_hooks([recorder(calls, "last ")], priority="LOW")
    trainer.register_hooks([recorder(calls, "first ")], priority=0)
    trainer.register_hooks([None, recorder(calls, "second ")], priority="very_high")
    trainer.train(0, 1)
    names = ["first", "second", "third", "fourth", "last"]
    for point in POINTS:
        assert [call.split()[0] for call in calls if f" {point} " in call] == names


def test_the_arguments_of_an_evaluation_reach_the_hooks():
    seen = []
    hook = CallbackHook(
        after_eval_step=lambda trainer, outputs: seen.append(outputs),
        after_eval=lambda trainer, results: seen.append(results),
    )
    Steps(Evaluation(at=0), hook).train(0, 1)
    assert seen == ["outputs", {"accuracy": 1.0}]


def test_the_user_may_reorder_the_hooks_before_a_run():
    calls: list[str] = []
    trainer = Steps(recorder(calls, "a "), recorder(calls, "b "))
    trainer._hooks = trainer._hooks[::-1]
    trainer.train(0, 1)
    assert calls[:2] == ["b before_train 0", "a before_train 0"]
    calls.clear()
    trainer._hooks.reverse()
    trainer.train(0, 1)
    assert calls[:2] == ["a before_train 0", "b before_train 0"]


def test_epochs_are_unknown_to_a_trainer_that_does_not_tell_their_length():
    calls: list[str] = []
    Steps(recorder(calls)).train(0, 2)
    assert not [call for call in calls if "epoch" in call]


def test_a_run_that_begins_inside_an_epoch_begins_with_before_epoch():
    calls: list[str] = []
    Steps(recorder(calls), epoch_length=4).train(3, 5)
    assert [call for call in calls if "epoch" in call] == [
        "before_epoch 3",
        "after_epoch 3",
        "before_epoch 4",
    ]


def test_the_order_is_logged_at_the_start_and_the_time_of_each_hook_at_the_end(log):
    trainer = Steps(IterationTimer(), Counter())
    trainer.register_hooks([PeriodicWriter([])], priority="LOWEST")
    trainer.train(0, 2)
    order, times = (
        next(record.message for record in log.records if record.message.startswith(title))
        for title in ("Hooks in their order", "Time of the hooks")
    )
    rows = [line.split() for line in order.splitlines()[3:]]
    assert [row[:2] for row in rows] == [
        ["IterationTimer", "0"],
        ["Counter", "50"],
        ["PeriodicWriter", "100"],
    ]
    assert rows[0][2:] == ["before_train,", "before_step,", "after_step,", "after_train"]
    assert re.search(r"(Counter|others \(\d\)) +\d\.\d{3}", times)


def test_a_trainer_without_hooks_trains():
    trainer = Steps()
    trainer.train(0, 3)
    assert trainer.done == [0, 1, 2]


def test_a_trainer_without_run_step_says_so():
    with pytest.raises(NotImplementedError, match=r"TrainerBase must define run_step"):
        TrainerBase().train(0, 1)


@pytest.mark.parametrize("wrong", ["a string", object()])
def test_what_is_not_a_hook_is_refused_and_nothing_is_registered(wrong):
    trainer = Steps()
    with pytest.raises(TypeError, match=f"must be a HookBase, got {type(wrong).__name__}"):
        trainer.register_hooks([Counter(), wrong])
    assert trainer._hooks == []


def test_a_priority_that_is_none_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match=r"LOWEST; got 'HIHG'"):
        Steps().register_hooks([Counter()], priority="HIHG")


# --- the clock ---------------------------------------------------------------------------------


def test_iter_is_the_running_step_and_max_iter_after_the_last():
    seen = []
    hook = CallbackHook(
        before_step=lambda t: seen.append((t.iter, t.storage.iter)),
        after_train=lambda t: seen.append((t.iter, t.storage.iter, t.failed)),
    )
    trainer = Steps(hook)
    trainer.train(5, 7)
    assert seen == [(5, 5), (6, 6), (7, 7, False)]
    assert (trainer.start_iter, trainer.iter, trainer.max_iter) == (5, 7, 7)


def test_a_step_finds_the_storage_and_so_does_the_user_after_the_run():
    class Putting(TrainerBase):
        def run_step(self) -> None:
            get_event_storage().put_scalar("double", 2 * self.iter)

    trainer = Putting()
    trainer.train(3, 5)
    assert trainer.storage.history("double").values() == [(6.0, 3), (8.0, 4)]


def test_train_with_the_end_before_the_start_is_refused():
    trainer = Steps()
    with pytest.raises(ValueError, match=r"train\(5, 3\): start_iter must be between 0 and max"):
        trainer.train(5, 3)
    with pytest.raises(ValueError, match=r"train\(-1, 3\)"):
        trainer.train(-1, 3)
    assert trainer.done == []


def test_a_run_with_nothing_left_to_train_runs_no_hook(log):
    calls: list[str] = []
    trainer = Steps(recorder(calls))
    trainer.train(5, 5)
    assert (calls, trainer.done, trainer.iter) == ([], [], 5)
    assert "Nothing to train: iteration 5 of 5 is reached" in log.text


def test_training_again_on_the_same_trainer_starts_afresh():
    calls: list[str] = []
    trainer = Steps(recorder(calls), CallbackHook(after_step=at(1, lambda t: t.stop("once"))))
    trainer.train(0, 9)
    first, storage = list(calls), trainer.storage
    calls.clear()
    trainer.train(0, 9)
    assert calls == first
    assert trainer.storage is not storage
    trainer.train(2, 5)
    assert trainer.done == [0, 1, 0, 1, 2, 3, 4]


def test_training_further_keeps_what_was_written_at_the_end(tmp_path):
    def evaluate(trainer: TrainerBase) -> None:
        trainer.storage.put_scalar("accuracy", float(trainer.iter), smoothing_hint=False)

    writing = PeriodicWriter([JSONWriter(tmp_path / "metrics.json")], 2)
    putting = CallbackHook(after_step=lambda t: t.storage.put_scalar("x", t.iter))
    trainer = Steps(putting, CallbackHook(after_train=evaluate), writing)
    trainer.train(0, 4)
    trainer.train(4, 6)
    lines = [json.loads(line) for line in (tmp_path / "metrics.json").read_text().splitlines()]
    assert [(line["iteration"], line.get("accuracy")) for line in lines] == [
        (1, None), (3, None), (4, 4.0), (5, None), (6, 6.0),
    ]  # fmt: skip
    assert list(trainer.storage.history("x").values()) == [(4.0, 4), (5.0, 5)]


def test_a_failed_trainer_can_train_again():
    calls: list[str] = []
    failing = CallbackHook(before_train=fail)
    trainer = Steps(failing, recorder(calls))
    with pytest.raises(OSError, match="disk is full"):
        trainer.train(0, 2)
    trainer._hooks.remove(failing)
    calls.clear()
    trainer.train(0, 2)
    assert (calls[0], calls[-1]) == ("before_train 0", "after_train 2")
    assert not trainer.failed


# --- ending early ------------------------------------------------------------------------------


def early_stop(trainer: TrainerBase) -> None:
    get_event_storage().early_stop = True


def lower_max_iter(trainer: TrainerBase) -> None:
    trainer.max_iter = trainer.iter + 1


@pytest.mark.parametrize("point", ["before_step", "after_backward", "after_step"])
@pytest.mark.parametrize(
    "end", [lambda trainer: trainer.stop("enough"), early_stop, lower_max_iter]
)
def test_a_run_ends_after_the_step_in_which_somebody_wants_it(end, point):
    calls: list[str] = []
    trainer = Steps(recorder(calls), CallbackHook(**{point: at(3, end)}))
    trainer.train(0, 100)
    assert trainer.done == [0, 1, 2, 3]
    assert calls[-2:] == ["after_step 3", "after_train 4"]
    assert not trainer.failed


def test_the_reasons_for_a_stop_are_logged_and_kept(log):
    trainer = Steps(
        CallbackHook(after_step=lambda t: t.stop("accuracy is 1")),
        CallbackHook(after_step=lambda t: t.stop("it is late")),
    )
    trainer.train(0, 9)
    assert trainer.stop_reasons == ["accuracy is 1", "it is late"]
    assert "Stopping after 1 of 9 iterations: accuracy is 1; it is late" in log.text
    trainer.train(1, 2)
    assert trainer.stop_reasons == ["accuracy is 1", "it is late"]


def test_early_stop_is_logged_as_the_reason():
    trainer = Steps(CallbackHook(after_step=early_stop))
    trainer.train(0, 9)
    assert trainer.stop_reasons == ["storage.early_stop was set"]


def test_a_stop_before_the_first_step_runs_no_step():
    trainer = Steps(CallbackHook(before_train=lambda t: t.stop("changed my mind")))
    trainer.train(0, 9)
    assert trainer.done == []


def test_a_stopped_run_writes_what_is_left(tmp_path):
    trainer = Steps(
        CallbackHook(after_step=lambda t: t.storage.put_scalar("x", t.iter)),
        CallbackHook(after_step=at(6, lambda t: t.stop("enough"))),
        PeriodicWriter([JSONWriter(tmp_path / "metrics.json")], period=5),
    )
    trainer.train(0, 100)
    lines = (tmp_path / "metrics.json").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [4, 6]


# --- registering in the middle of a run --------------------------------------------------------


def test_a_hook_registered_in_a_run_starts_at_once_and_joins_at_the_next_point():
    calls: list[str] = []
    late = recorder(calls)
    trainer = Steps(CallbackHook(before_step=at(2, lambda t: t.register_hooks([late]))))
    trainer.train(0, 4)
    assert calls == [
        "before_train 2",
        "after_backward 2",
        "after_step 2",
        "before_step 3",
        "after_backward 3",
        "after_step 3",
        "after_train 4",
    ]


def test_a_hook_registered_while_hooks_start_is_started_once():
    calls: list[str] = []
    late = recorder(calls)
    trainer = Steps(CallbackHook(before_train=lambda t: t.register_hooks([late])))
    trainer.train(0, 1)
    assert calls == [
        "before_train 0",
        "before_step 0",
        "after_backward 0",
        "after_step 0",
        "after_train 1",
    ]


def test_hooks_registered_in_a_run_that_could_not_start_are_not_ended():
    calls: list[str] = []
    failing = CallbackHook(before_train=fail, after_train=lambda t: calls.append("never"))
    trainer = Steps(
        CallbackHook(after_step=at(1, lambda t: t.register_hooks([failing, recorder(calls)])))
    )
    with pytest.raises(OSError, match="disk is full"):
        trainer.train(0, 4)
    assert calls == []


def test_the_times_of_the_other_hooks_survive_a_late_registration(log):
    class Costly(HookBase):
        def before_train(self) -> None:
            sum(range(1_000_000))

    trainer = Steps(Costly(), CallbackHook(after_step=lambda t: t.register_hooks([Counter()])))
    trainer.train(0, 1)
    times = next(r.message for r in log.records if r.message.startswith("Time of the hooks"))
    assert re.search(r"Costly +\d\.\d{3} +before_train", times)


# --- a loop of one's own -----------------------------------------------------------------------


def test_the_points_can_be_called_from_a_loop_of_ones_own(tmp_path):
    class Own(OwnLoop, Steps):
        def run_step(self) -> None:
            super().run_step()
            self.storage.put_scalar("x", self.iter)

    calls: list[str] = []
    writing = PeriodicWriter([JSONWriter(tmp_path / "metrics.json")], period=2)
    trainer = Own(recorder(calls), writing)
    for _ in range(2):
        trainer.train(0, 3)
    assert calls == 2 * [
        "before_train 0",
        *(f"{point} {i}" for i in range(3) for point in ("before_step", *POINTS[3:5])),
        "after_train 3",
    ]
    lines = (tmp_path / "metrics.json").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [1, 2]


# --- what code for detectron2 does -------------------------------------------------------------


def test_the_length_may_be_set_before_the_constructor_is_called():
    class Own(TrainerBase):
        def __init__(self):
            self.max_iter = 3
            super().__init__()
            self.done = 0

        def run_step(self):
            self.done += 1

    trainer = Own()
    trainer.train(trainer.start_iter, trainer.max_iter)
    assert trainer.done == 3


def test_points_that_are_overridden_without_super_keep_the_count():
    class Own(Steps):
        def before_step(self):
            self.storage.iter = self.iter

        def after_step(self):
            states.append(self.state_dict()["iteration"])

        def after_train(self):
            self.storage.iter = self.iter

    states: list[int] = []
    trainer, late = Own(), Counter()
    trainer.train(0, 3)
    assert states == [0, 1, 2]
    trainer.register_hooks([CallbackHook(before_train=fail), late])  # nothing is running


def test_the_list_of_hooks_may_be_changed_while_it_runs():
    first, second = Counter(), Counter()
    second.priority = "LOW"

    def change(trainer) -> None:
        trainer._hooks.remove(first)
        trainer._hooks.append(second)

    trainer = Steps(first, CallbackHook(after_step=at(3, change)))
    trainer.train(0, 10)
    assert (first.count, second.count) == (4, 6)


def test_an_own_attribute_may_be_called_as_one_of_ours():
    trainer = Steps()
    trainer.epoch_length = 7
    trainer.train(0, 2)
    assert trainer.epoch_length == 7


def test_a_trainer_inside_may_refer_to_the_one_around_it():
    outer, inner = Steps(), Steps()
    outer.inner, inner.parent = inner, outer
    outer.train(0, 2)
    assert outer.iter == 2
