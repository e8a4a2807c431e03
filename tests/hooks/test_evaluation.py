import json
import signal
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from engine import SimpleTrainer, get_event_storage
from engine.checkpoint import Checkpointer
from engine.evaluation import DatasetEvaluator, inference_on_dataset
from engine.events import JSONWriter
from engine.hooks import (
    CallbackHook,
    EMAHook,
    EvalHook,
    HookBase,
    PeriodicCheckpointer,
    PeriodicWriter,
    PreciseBN,
    StopOnSignal,
)


class Evaluation:
    """An eval function that notes when it is called."""

    def __init__(self, results=None) -> None:
        self.results = results
        self.called_at: list[int] = []

    def __call__(self):
        self.called_at.append(get_event_storage().iter)
        return self.results


def make_trainer(model, batches, *hooks) -> SimpleTrainer:
    trainer = SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.01))
    trainer.register_hooks(hooks)
    return trainer


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_hooks_that_are_registered_after_it_see_its_results_in_the_same_step(model, batches):
    class Look(HookBase):
        def __init__(self) -> None:
            self.seen_at: list[int] = []

        def after_step(self) -> None:
            if "score" in self.trainer.storage.latest():
                self.seen_at.append(self.trainer.iter)

    before, after = Look(), Look()
    evaluation = EvalHook(5, Evaluation({"score": 1.0}))
    make_trainer(model, batches, before, evaluation, after).train(0, 7)
    assert before.seen_at == [5, 6]
    assert after.seen_at == [4, 5, 6]


def test_it_sees_averaged_weights_and_exact_statistics_of_hooks_registered_after_it():
    class Shifted(nn.BatchNorm1d):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return super().forward(batch).sum(0).mean()  # its bias goes down by 0.04 in each step

    model, batches, seen = Shifted(2), [torch.rand(8, 2) + 5], []
    evaluation = EvalHook(
        3, lambda: seen.append((model.bias.tolist(), model.running_mean.clone())), False
    )
    precise_bn = PreciseBN(3, model, batches, num_iter=1)
    make_trainer(model, batches, evaluation, EMAHook(decay=0.5), precise_bn).train(0, 4)
    ((bias, mean),) = seen
    assert bias == pytest.approx(2 * [-0.04 / 8 - 0.08 / 4 - 0.12 / 2])
    torch.testing.assert_close(mean, batches[0].mean(0))


def test_subclasses_may_compare_and_set_the_period(model, batches):
    class Own(EvalHook):
        def after_step(self) -> None:
            if self._period > 0 and (self.trainer.iter + 1) % self._period == 0:
                self._do_eval()

    evaluation = Evaluation()
    hook = Own(10, evaluation, eval_after_train=False)
    hook._period = 4
    make_trainer(model, batches, hook).train(0, 10)
    assert evaluation.called_at == [3, 7]


@pytest.mark.parametrize(
    ("total_iter", "period", "called_at"),
    [
        (30, 15, [14, 30]),
        (31, 15, [14, 29, 31]),
        (20, 0, [20]),
        (5, 10, [5]),
        (12, "1 epoch", [5, 12]),
    ],
)
def test_it_evaluates_every_period_and_once_at_the_end(
    model, batches, total_iter, period, called_at
):
    evaluation = Evaluation()
    make_trainer(model, batches, EvalHook(period, evaluation)).train(0, total_iter)
    assert evaluation.called_at == called_at


def test_the_evaluation_at_the_end_can_be_left_out(model, batches):
    evaluation = Evaluation()
    make_trainer(model, batches, EvalHook(10, evaluation, eval_after_train=False)).train(0, 20)
    assert evaluation.called_at == [9]


def test_results_are_stored_by_their_joined_names_and_unsmoothed(model, batches):
    evaluation = Evaluation({"digits": {"top1": 0.5, "per": {"0": torch.tensor(0.25)}}, "loss": 2})
    trainer = make_trainer(model, batches, EvalHook(3, evaluation))
    trainer.train(0, 5)
    latest, hints = trainer.storage.latest(), trainer.storage.smoothing_hints()
    for name, value in [("digits/top1", 0.5), ("digits/per/0", 0.25), ("loss", 2.0)]:
        assert latest[name] == (value, 5)
        assert hints[name] is False
    assert trainer.storage.history("loss").values() == [(2.0, 2), (2.0, 5)]


def test_a_metric_may_have_any_name(model, batches):
    evaluation = Evaluation({"cur_iter": 7.5, "smoothing_hint": 0.5, "name": 1.5, "value": 2.5})
    trainer = make_trainer(model, batches, EvalHook(0, evaluation))
    trainer.train(0, 3)
    latest = trainer.storage.latest()
    assert {name: latest[name] for name in evaluation.results} == {
        "cur_iter": (7.5, 3),
        "smoothing_hint": (0.5, 3),
        "name": (1.5, 3),
        "value": (2.5, 3),
    }


@pytest.mark.parametrize("results", [None, {}])
def test_an_evaluation_may_have_no_results(model, batches, results):
    ended: list[dict] = []
    listen = CallbackHook()
    listen.after_eval = ended.append
    make_trainer(model, batches, EvalHook(0, Evaluation(results)), listen).train(0, 2)
    assert ended == [{}]


@pytest.mark.parametrize("results", [0.0, 0.9, [], "accurate"])
def test_what_is_no_dict_is_refused(model, batches, results):
    trainer = make_trainer(model, batches, EvalHook(1, Evaluation(results)))
    with pytest.raises(TypeError, match="must return a dict or None, got"):
        trainer.train(0, 3)


@pytest.mark.parametrize("value", ["high", [0.5, 0.6], None, torch.zeros(2)], ids=repr)
def test_what_is_no_number_is_refused_by_its_name(model, batches, value):
    trainer = make_trainer(model, batches, EvalHook(1, Evaluation({"digits": {"top1": value}})))
    with pytest.raises(ValueError, match="digits/top1"):
        trainer.train(0, 3)


def test_every_evaluation_is_written_though_the_writer_has_a_longer_period(
    model, batches, tmp_path
):
    class Counting:
        def __call__(self):
            return {"score": get_event_storage().iter}

    writer = PeriodicWriter([JSONWriter(tmp_path / "metrics.json")], period=20)
    make_trainer(model, batches, writer, EvalHook(5, Counting())).train(0, 40)
    written = {line["iteration"]: line.get("score") for line in lines(tmp_path / "metrics.json")}
    evaluated = [4, 9, 14, 19, 24, 29, 34, 40]
    assert [at for at, score in written.items() if score is not None] == evaluated
    assert all(written[at] == at for at in evaluated)


# --- when there is none ------------------------------------------------------------------------


@pytest.mark.parametrize("failing_step", [1, 9])
def test_a_run_that_failed_is_not_evaluated(model, batches, failing_step):
    def after_step(trainer) -> None:
        if trainer.iter == failing_step:
            raise RuntimeError("the step failed")

    evaluation = Evaluation()
    trainer = make_trainer(
        model, batches, CallbackHook(after_step=after_step), EvalHook(5, evaluation)
    )
    with pytest.raises(RuntimeError, match="the step failed"):
        trainer.train(0, 10)
    assert evaluation.called_at == [at for at in (4,) if at < failing_step]


def test_a_run_that_is_interrupted_is_not_evaluated(model, batches):
    def after_step(trainer) -> None:
        raise KeyboardInterrupt

    evaluation = Evaluation()
    trainer = make_trainer(
        model, batches, CallbackHook(after_step=after_step), EvalHook(0, evaluation)
    )
    with pytest.raises(KeyboardInterrupt):
        trainer.train(0, 10)
    assert evaluation.called_at == []


def test_a_finished_run_that_is_resumed_is_not_evaluated_again(model, batches, tmp_path):
    for expected in ([4, 8], []):
        evaluation = Evaluation()
        trainer = make_trainer(model, batches, EvalHook(5, evaluation))
        checkpointer = Checkpointer(model, tmp_path, trainer=weakref.proxy(trainer))
        trainer.register_hooks([PeriodicCheckpointer(checkpointer, 3)])
        start = 0
        if checkpointer.resume_or_load(""):
            start = trainer.iter + 1
        trainer.train(start, 8)
        assert evaluation.called_at == expected


def test_a_run_that_is_stopped_is_evaluated_at_its_end(model, batches):
    def after_step(trainer) -> None:
        if trainer.iter == 6:
            trainer.stop("enough")

    evaluation = Evaluation()
    hooks = [CallbackHook(after_step=after_step), EvalHook(5, evaluation)]
    make_trainer(model, batches, *hooks).train(0, 20)
    assert evaluation.called_at == [4, 7]


def test_a_run_that_is_to_be_continued_is_not_evaluated_at_its_end(model, batches):
    def after_step(trainer) -> None:
        if trainer.iter == 6:
            trainer.stop("no time", requeue=True)

    evaluation = Evaluation()
    hooks = [CallbackHook(after_step=after_step), EvalHook(5, evaluation)]
    make_trainer(model, batches, *hooks).train(0, 20)
    assert evaluation.called_at == [4]


def test_a_trainer_may_train_again(model, batches):
    evaluation = Evaluation({"score": 1.0})
    trainer = make_trainer(model, batches, EvalHook(0, evaluation))
    trainer.train(0, 3)
    trainer.train(3, 6)
    assert evaluation.called_at == [3, 6]


# --- the points of an evaluation ---------------------------------------------------------------


class Recorder(HookBase):
    """Notes what it is called for around evaluations."""

    def __init__(self) -> None:
        self.calls: list = []

    def before_eval(self) -> None:
        self.calls.append("before_eval")

    def before_eval_step(self) -> None:
        self.calls.append("before_eval_step")

    def after_eval_step(self, outputs) -> None:
        self.calls.append(("after_eval_step", outputs))

    def after_eval(self, results) -> None:
        self.calls.append(("after_eval", results))


class Nothing(DatasetEvaluator):
    def evaluate(self):
        return {"digits": {"top1": 0.5}}


def test_the_points_of_an_evaluation_reach_the_hooks_in_their_order(model, batches):
    recorder = Recorder()
    double = nn.Identity()
    trainer = make_trainer(
        model,
        batches,
        EvalHook(0, lambda: inference_on_dataset(double, ["a", "b"], Nothing())),
        recorder,
    )
    trainer.train(0, 2)
    assert recorder.calls == [
        "before_eval",
        "before_eval_step",
        ("after_eval_step", "a"),
        "before_eval_step",
        ("after_eval_step", "b"),
        ("after_eval", {"digits/top1": 0.5}),
    ]
    with trainer.storage:  # outside of an evaluation nobody listens
        inference_on_dataset(double, ["c"], Nothing())
    assert len(recorder.calls) == 6


@pytest.mark.parametrize("results", ["raise", {"score": "high"}, 3], ids=repr)
def test_after_an_evaluation_that_fails_the_hooks_get_no_results(model, batches, results):
    def evaluate():
        if results == "raise":
            raise OSError("the test set is gone")
        return results

    recorder = Recorder()
    trainer = make_trainer(model, batches, EvalHook(0, evaluate), recorder)
    with pytest.raises((OSError, TypeError, ValueError)):
        trainer.train(0, 2)
    assert recorder.calls == ["before_eval", ("after_eval", {})]


@pytest.mark.parametrize("point", ["evaluation", "signal"])
def test_a_hook_that_looks_for_a_result_hides_neither_an_error_nor_a_stop(
    model, batches, tmp_path, point
):
    def evaluate():
        if point == "evaluation":
            raise OSError("the test set is gone")
        signal.raise_signal(signal.SIGTERM)
        inference_on_dataset(model, batches[:2], Nothing())

    class Impatient(HookBase):
        def after_eval(self, results) -> None:
            results["accuracy"]

    recorder = Recorder()
    checkpointer = PeriodicCheckpointer(Checkpointer(model, tmp_path), 100)
    hooks = [StopOnSignal(), EvalHook(2, evaluate), Impatient(), recorder, checkpointer]
    trainer = make_trainer(model, batches, *hooks)
    if point == "evaluation":
        with pytest.raises(OSError, match="the test set is gone"):
            trainer.train(0, 4)
    else:
        trainer.train(0, 4)
        assert (tmp_path / "model_0000001.pth").exists()
    assert recorder.calls[-1] == ("after_eval", {})


def test_a_hook_that_fails_before_an_evaluation_has_it_ended_for_the_others(model, batches):
    class Failing(HookBase):
        def before_eval(self) -> None:
            raise OSError("no memory for a copy")

    recorder, evaluation = Recorder(), Evaluation()
    trainer = make_trainer(model, batches, recorder, Failing(), EvalHook(0, evaluation))
    with pytest.raises(OSError, match="no memory for a copy"):
        trainer.train(0, 2)
    assert recorder.calls == ["before_eval", ("after_eval", {})]
    assert evaluation.called_at == []


def test_the_model_is_back_in_training_mode_after_an_evaluation(model, batches):
    modes = []

    def evaluate():
        return inference_on_dataset(model, batches, Nothing(), {"on_end": note_mode})

    def note_mode() -> None:
        modes.append(model.training)

    make_trainer(model, batches, EvalHook(2, evaluate)).train(0, 6)
    assert modes == [False] * 3
    assert model.training


def test_a_result_with_the_name_of_a_loss_is_stored_beside_it(batches, log):
    class Net(nn.Linear):
        def forward(self, batch):
            return {"loss": super().forward(batch[0]).mean()}

    model = Net(4, 1)
    trainer = make_trainer(model, batches, EvalHook(2, Evaluation({"loss": 7.0})))
    trainer.train(0, 5)
    assert trainer.storage.latest()["eval/loss"] == (7.0, 5)
    assert trainer.storage.latest()["loss"][1] == 4
    assert "The result 'loss' is stored as 'eval/loss'" in log.text


def test_a_result_in_the_place_of_the_function_is_refused_at_once():
    with pytest.raises(TypeError, match=r"called at each evaluation, got \{'accuracy': 1"):
        EvalHook(5, {"accuracy": 1.0})


def learning_rates(results: dict | None) -> list[float]:
    """Those of a hook that follows the loss among the results."""

    class Halve(HookBase):
        def after_eval(self, results: dict[str, float]) -> None:
            if results.get("task/loss") == 1.0:
                optimizer.param_groups[0]["lr"] /= 2
            rates.append(optimizer.param_groups[0]["lr"])

    rates: list[float] = []
    model = nn.Linear(4, 1)
    model.forward = lambda batch: (batch @ model.weight.T).mean()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    trainer = SimpleTrainer(model, [torch.ones(2, 4)], optimizer)
    trainer.register_hooks([EvalHook(2, lambda: results), Halve()])
    trainer.train(0, 6)
    return rates


def put_and_evaluate(rank: int, who: int, path: Path) -> list[dict]:
    """The lines of a run in which one rank puts a metric of the same name as a result."""
    model = nn.Linear(4, 1)
    model.forward = lambda batch: (batch @ model.weight.T).mean()
    trainer = SimpleTrainer(model, [torch.ones(2, 4)], torch.optim.SGD(model.parameters(), 1.0))
    put = CallbackHook(after_step=lambda run: rank == who and run.storage.put_scalar("mine", 0.5))
    writers = [JSONWriter(str(path))] if rank == 0 else []
    trainer.register_hooks(
        [put, EvalHook(2, lambda: {"mine": 9.0}), PeriodicWriter(writers, 2, over_ranks=True)]
    )
    trainer.train(0, 4)
    return lines(path) if rank == 0 else []


def work(rank: int, folder: Path) -> dict[str, list]:
    """The learning rates where rank 0 alone has all results, and others none or some of them; and
    the lines where rank 0 or rank 1 puts a metric with the name of a result."""
    loss = {"task": {"loss": 1.0}} if rank == 0 else {}
    return {
        "none": learning_rates(loss or None),
        "some": learning_rates({"other": {"accuracy": 1.0}, **loss}),
        **{f"put {who}": put_and_evaluate(rank, who, folder / f"{who}.json") for who in range(2)},
    }


@pytest.mark.parametrize("what", ["none", "some"])
def test_results_of_rank_0_reach_hooks_of_ranks_that_do_not_have_them(processes, what):
    assert [rates[what] for rates in processes] == [[0.5, 0.25, 0.125]] * 2


@pytest.mark.parametrize("who", [0, 1])
def test_a_result_is_stored_beside_a_metric_that_one_rank_alone_puts(processes, who):
    shown = [(line.get("mine"), line.get("eval/mine")) for line in processes[0][f"put {who}"]]
    assert shown == [(0.5, 9.0), (0.5, None), (None, 9.0)]
