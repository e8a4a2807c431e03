import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from engine.evaluation import (
    DatasetEvaluator,
    DatasetEvaluators,
    evaluator,
    inference_context,
    inference_on_dataset,
)
from engine.events import EventStorage


class Collect(DatasetEvaluator):
    """Keeps what it is given; its result is the sum of the outputs."""

    def __init__(self, task="collect"):
        self.task = task
        self.batches = []

    def reset(self):
        self.batches = []

    def process(self, inputs, outputs):
        self.batches.append((inputs, outputs))

    def evaluate(self):
        return {self.task: {"sum": float(sum(outputs for _, outputs in self.batches))}}


def double(batch):
    return 2 * batch


def frozen_norm_model():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    model.train()
    model[1].eval()
    return model


def modes(model):
    return [module.training for module in model.modules()]


def test_every_batch_is_run_and_measured():
    collect = Collect()
    assert inference_on_dataset(double, [1, 2, 3], collect) == {"collect": {"sum": 12.0}}
    assert collect.batches == [(1, 2), (2, 4), (3, 6)]


def test_a_second_evaluation_starts_afresh():
    collect = Collect()
    first = inference_on_dataset(double, [1, 2, 3], collect)
    assert inference_on_dataset(double, [1, 2, 3], collect) == first


def test_several_evaluators_see_the_same_batches_and_their_results_are_merged():
    results = inference_on_dataset(double, [1, 2], [Collect("one"), Collect("two")])
    assert results == {"one": {"sum": 6.0}, "two": {"sum": 6.0}}


def test_two_evaluators_with_the_same_key_are_an_error_that_names_it():
    both = DatasetEvaluators([Collect("boxes"), Collect("boxes")])
    with pytest.raises(ValueError, match="key 'boxes', the second one is Collect"):
        inference_on_dataset(double, [1], both)


@pytest.mark.parametrize("nothing", [None, [], DatasetEvaluator()])
def test_without_results_they_are_an_empty_dict(nothing):
    assert inference_on_dataset(double, [1, 2], nothing) == {}


@pytest.mark.parametrize("given", ["accuracy", Collect, ["accuracy"]])
def test_what_is_no_evaluator_is_refused(given):
    with pytest.raises(TypeError, match="an evaluator must be a DatasetEvaluator, got"):
        inference_on_dataset(double, [1], given)


def test_results_that_are_no_dict_are_refused_with_the_evaluators_name():
    class Wrong(DatasetEvaluator):
        def evaluate(self):
            return 0.9

    for given in (Wrong(), [Collect(), Wrong()]):
        with pytest.raises(TypeError, match=r"Wrong.evaluate must return a dict or None, got 0\.9"):
            inference_on_dataset(double, [1], given)


def test_the_model_runs_in_eval_mode_and_without_gradients():
    model = frozen_norm_model()
    seen = []
    model.register_forward_hook(
        lambda *_: seen.append((any(modes(model)), torch.is_grad_enabled()))
    )
    inference_on_dataset(model, [torch.zeros(3, 2)], None)
    assert seen == [(False, False)]
    assert torch.is_grad_enabled()


def test_each_module_is_in_its_own_mode_again_afterwards():
    model = frozen_norm_model()
    inference_on_dataset(model, [torch.zeros(3, 2)], None)
    assert modes(model) == [True, True, False, True]


def test_modes_are_restored_after_an_exception():
    model = frozen_norm_model()
    with pytest.raises(RuntimeError, match="shapes"):
        inference_on_dataset(model, [torch.zeros(3, 7)], None)
    assert modes(model) == [True, True, False, True]
    assert torch.is_grad_enabled()


def test_a_model_in_eval_mode_stays_in_it():
    model = frozen_norm_model().eval()
    with inference_context(model):
        pass
    assert not any(modes(model))


def test_models_that_do_something_when_their_mode_changes_can_undo_it():
    class Merging(nn.Linear):
        merged = False

        def train(self, mode=True):
            self.merged = not mode
            return super().train(mode)

    model = Merging(1, 1)
    with inference_context(model):
        assert model.merged
    assert not model.merged
    assert model.training


def test_callbacks_are_called_around_the_loop_and_each_batch():
    calls = []
    callbacks = {
        name: lambda name=name: calls.append(name)
        for name in ("on_start", "before_inference", "after_inference", "on_end")
    }
    inference_on_dataset(lambda batch: calls.append(batch), ["a", "b"], None, callbacks)
    around = ["before_inference", "a", "after_inference", "before_inference", "b"]
    assert calls == ["on_start", *around, "after_inference", "on_end"]


def test_an_unknown_callback_is_refused():
    with pytest.raises(ValueError, match="no callback 'on_begin', only on_start"):
        inference_on_dataset(double, [1], None, {"on_begin": lambda: None})


def test_who_listens_to_the_storage_hears_of_each_batch():
    heard = []
    with (
        EventStorage() as storage,
        storage.listening(
            before_eval_step=lambda: heard.append("before"), after_eval_step=heard.append
        ),
    ):
        inference_on_dataset(double, [1, 2], None)
    assert heard == ["before", 2, "before", 4]


def test_a_loader_without_a_length_is_read_to_its_end(log):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(5))

    loader = DataLoader(Stream(), batch_size=None)
    assert inference_on_dataset(double, loader, Collect()) == {"collect": {"sum": 20.0}}
    assert "an unknown number of batches" in log.text
    assert "Evaluated 5 batches in" in log.text


def test_one_batch_is_called_one(log):
    inference_on_dataset(double, [1], Collect())
    assert log.messages[0] == "Evaluating 1 batch"
    assert log.messages[-1].startswith("Evaluated 1 batch in")


def test_a_rank_without_batches_still_takes_part(log):
    assert inference_on_dataset(double, [], Collect()) == {"collect": {"sum": 0.0}}
    assert "Evaluated 0 batches" in log.text


class Clock:
    """A time that stands still but for what the data and the model say they take."""

    now = 0.0

    def __call__(self):
        return self.now

    def take(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(evaluator, "perf_counter", clock)
    return clock


def test_the_first_batches_are_not_in_the_times(log, clock):
    def loader():
        for seconds in [100] * 5 + [2] * 3:
            clock.take(1)
            yield seconds

    inference_on_dataset(clock.take, loader(), None)
    assert log.messages[-1] == (
        "Evaluated 8 batches in 0:08:34: "
        "3.0000 s a batch (data 1.0000, compute 2.0000, eval 0.0000)"
    )


def test_the_time_left_follows_from_the_batches_that_were_timed(log, clock):
    inference_on_dataset(clock.take, [1] * 5 + [10] * 5, None)
    assert log.messages[2].startswith("Evaluated 6/10 batches: 10.0000 s a batch")
    assert log.messages[2].endswith("ETA 0:00:40.")


def test_progress_is_logged_every_five_seconds(log, clock):
    inference_on_dataset(clock.take, [2] * 10, None)
    assert [line.split()[1] for line in log.messages[1:-1]] == ["3/10", "6/10", "9/10"]


def test_nothing_is_logged_for_each_batch(log):
    inference_on_dataset(double, range(1000), None)
    assert [record.levelno for record in log.records] == [logging.INFO] * 2
