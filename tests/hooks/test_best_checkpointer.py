import json
import math

import pytest
import torch

from engine.checkpoint import Checkpointer
from engine.events import JSONWriter
from engine.hooks import (
    BestCheckpointer,
    CallbackHook,
    EMAHook,
    EvalHook,
    PeriodicCheckpointer,
    PeriodicWriter,
)
from saving_runs import (
    Wide,
    best_run,
    fail_at,
    last,
    make_trainer,
    names,
    saved_weights,
    stop_at,
    weights,
)


@pytest.mark.parametrize(
    ("mode", "metrics", "saves"),
    [
        ("max", [0.3, 0.4, 0.35, 0.5], [9, 19, 40]),
        ("max", [-3.0, -2.0, -2.5, -1.0], [9, 19, 40]),
        ("min", [1.0, 0.8, 0.9, 0.9], [9, 19]),
        ("min", [math.nan, 0.8, 0.9, 0.9], [19]),
        ("max", [math.inf, math.nan, -math.inf, math.nan], []),
    ],
)
def test_each_better_value_is_saved(model, batches, monkeypatch, mode, metrics, saves):
    checkpointer = Checkpointer(model)
    saved = []
    monkeypatch.setattr(checkpointer, "save", lambda name, **extra: saved.append((name, extra)))
    hook = BestCheckpointer(10, checkpointer, "test/score", mode)
    best_run(model, batches, metrics, hook).train(0, 40)
    assert [extra["iteration"] for _, extra in saved] == saves
    assert {name for name, _ in saved} <= {"model_best"}
    assert hook.best_iter == (saves[-1] if saves else None)


@pytest.mark.parametrize("background", [False, True])
def test_a_best_one_that_could_not_be_saved_does_not_count(small_disk, batches, background):
    model = Wide()
    checkpointer = Checkpointer(model, small_disk, background=background)
    hook = BestCheckpointer(10, checkpointer, "+test/score")

    def fill_and_free(trainer) -> None:
        if trainer.iter == 15:
            (small_disk / "others").write_bytes(bytes(220_000))
        if trainer.iter == 25:
            if background:  # the disk is full until it has tried
                checkpointer._background._thread.submit(int).result()
            (small_disk / "others").unlink()

    make_room = CallbackHook(before_step=fill_and_free)
    best_run(model, batches, [0.3, 0.9, 0.5, 0.4], hook, make_room).train(0, 40)
    checkpointer.wait()
    assert (hook.best_metric, hook.best_iter) == (0.5, 29)
    assert torch.load(small_disk / "model_best.pth", weights_only=True)["iteration"] == 29


def test_the_best_file_holds_the_weights_that_were_evaluated(model, batches, tmp_path):
    seen = []

    def evaluate():
        seen.append(weights(model))
        return {"score": [0.1, 0.9, 0.2, 0.3][len(seen) - 1]}

    # The period of the hook need not be that of the evaluation.
    hook = BestCheckpointer(7, Checkpointer(model, tmp_path), "+score")
    make_trainer(model, batches, EvalHook(10, evaluate), hook).train(0, 40)
    assert saved_weights(tmp_path / "model_best.pth") == seen[1]
    assert (hook.best_metric, hook.best_iter) == (0.9, 19)


def test_a_metric_that_a_model_stores_is_compared_every_period(model, batches, tmp_path):
    store = CallbackHook(after_step=lambda t: t.storage.put_scalar("score", t.iter))
    hook = BestCheckpointer(4, Checkpointer(model, tmp_path), "+score")
    make_trainer(model, batches, store, hook, stop_at(9)).train(0, 20)
    assert hook.best_metric == 9.0


def test_the_metric_of_an_evaluation_decides_and_not_that_of_training(model, batches, tmp_path):
    store = CallbackHook(after_step=lambda t: t.storage.put_scalar("score", 9 - t.iter))
    left = iter([0.1, 0.3, 0.2])
    evaluation = EvalHook(5, lambda: {"test": {"score": next(left)}})
    best = BestCheckpointer(5, Checkpointer(model, tmp_path), "+score")
    lacking = BestCheckpointer(5, Checkpointer(model, tmp_path), "+total_loss")
    make_trainer(model, batches, store, evaluation, best, lacking).train(0, 15)
    assert (best.best_metric, best.best_iter) == (0.3, 9)
    assert lacking.best_metric is None


def test_a_metric_that_a_hook_only_stores_is_found_beside_an_evaluation(model, batches, tmp_path):
    def validate(trainer) -> None:
        if (trainer.iter + 1) % 5 == 0:
            trainer.storage.put_scalar("validation_loss", abs(trainer.iter - 9))

    evaluation = EvalHook(5, lambda: {"test": {"score": 1.0}})
    hook = BestCheckpointer(5, Checkpointer(model, tmp_path), "validation_loss", "min")
    make_trainer(model, batches, evaluation, CallbackHook(after_step=validate), hook).train(0, 20)
    assert (hook.best_metric, hook.best_iter) == (0.0, 9)


def test_last_checkpoint_never_names_the_best_file(model, batches, tmp_path):
    def look(trainer) -> None:
        tagged.append(last(tmp_path) if (tmp_path / "last_checkpoint").exists() else None)

    tagged: list[str | None] = []
    hooks = [
        PeriodicCheckpointer(Checkpointer(model, tmp_path), 20),
        BestCheckpointer(10, Checkpointer(model, tmp_path), "+test/score"),
    ]
    trainer = best_run(model, batches, [0.1, 0.2, 0.3, 0.4], *hooks)
    trainer.register_hooks([CallbackHook(after_step=look)], priority="LOWEST")
    trainer.train(0, 40)
    assert tagged == [None] * 19 + ["model_0000019.pth"] * 20 + ["model_0000039.pth"]
    assert last(tmp_path) == "model_final.pth"
    assert "model_best.pth" in names(tmp_path)


def test_the_best_value_survives_a_resume(model, batches, tmp_path, log):
    def make_run(metrics):
        trainer = best_run(model, batches, metrics)
        checkpointer = Checkpointer(model, tmp_path, trainer=trainer)
        hook = BestCheckpointer(10, checkpointer, "-test/score")
        trainer.register_hooks([hook, PeriodicCheckpointer(checkpointer, 20)])
        return trainer, checkpointer, hook

    trainer, _, _ = make_run([-1.0, -5.0])
    trainer.register_hooks([fail_at(25)])
    with pytest.raises(RuntimeError, match="the step failed"):
        trainer.train(0, 40)
    best = (tmp_path / "model_best.pth").read_bytes()
    resumed, checkpointer, hook = make_run([-3.0, -4.0])
    checkpointer.resume_or_load("")
    assert (hook.best_metric, hook.best_iter) == (-5.0, 19)
    resumed.train(resumed.iter + 1, 40)
    assert (hook.best_metric, hook.best_iter) == (-5.0, 19)
    assert (tmp_path / "model_best.pth").read_bytes() == best


def test_a_missing_metric_warns_and_saves_nothing(model, batches, tmp_path, log):
    hook = BestCheckpointer(10, Checkpointer(model, tmp_path), "test/scor")
    best_run(model, batches, [0.1] * 4, hook).train(0, 40)
    assert names(tmp_path) == []
    assert log.text.count("did you mean test/score?") == log.text.count("No metric") == 1


def test_a_stopped_run_is_evaluated_and_saved_as_best_and_last(model, batches, tmp_path):
    checkpointer = Checkpointer(model, tmp_path)
    hook = BestCheckpointer(10, checkpointer, "+test/score")
    last_hooks = [PeriodicCheckpointer(checkpointer, 100), stop_at(14)]
    best_run(model, batches, [0.1, 0.7], hook, *last_hooks).train(0, 40)
    assert hook.best_metric == 0.7
    assert last(tmp_path) == "model_0000014.pth"
    trained = weights(model)
    assert saved_weights(tmp_path / "model_best.pth") == trained
    assert saved_weights(tmp_path / "model_0000014.pth") == trained


def test_a_failed_run_saves_no_best(model, batches, tmp_path):
    store = CallbackHook(after_step=lambda t: t.storage.put_scalar("score", t.iter))
    hook = BestCheckpointer(4, Checkpointer(model, tmp_path), "+score")
    with pytest.raises(RuntimeError, match="the step failed"):
        make_trainer(model, batches, store, hook, fail_at(6)).train(0, 20)
    assert torch.load(tmp_path / "model_best.pth", weights_only=True)["iteration"] == 3


def test_a_run_with_one_evaluation_at_its_end_does_not_miss_it(model, batches, tmp_path, log):
    hook = BestCheckpointer(10, Checkpointer(model, tmp_path), "+test/score")
    best_run(model, batches, [0.5], hook).train(0, 10)
    assert (hook.best_metric, hook.best_iter) == (0.5, 10)
    assert "No metric" not in log.text


@pytest.mark.parametrize("error", ["raises", "returns no number"])
def test_a_last_evaluation_that_fails_leaves_the_trained_weights(model, batches, tmp_path, error):
    def evaluate():
        if error == "raises":
            raise OSError("the test set is gone")
        return {"score": "high"}

    ema = EMAHook(0.5)
    hooks = [
        ema,
        EvalHook(0, evaluate),
        PeriodicCheckpointer(Checkpointer(model, tmp_path), 0),
        PeriodicWriter([JSONWriter(tmp_path / "metrics.json")], 5),
    ]
    trained = []
    remember = CallbackHook(after_step=lambda trainer: trained.append(weights(model)))
    with pytest.raises((OSError, ValueError), match=r"the test set is gone|got str: 'high'"):
        make_trainer(model, batches, *hooks, remember).train(0, 10)
    assert saved_weights(tmp_path / "model_final.pth") == trained[-1]
    averaged = {name: tensor.tolist() for name, tensor in ema.average.items()}
    assert averaged != trained[-1]
    lines = (tmp_path / "metrics.json").read_text().splitlines()
    assert json.loads(lines[-1])["iteration"] == 9


def test_what_was_best_can_be_told(model, batches, tmp_path, log):
    hook = BestCheckpointer(10, Checkpointer(model, tmp_path), "+test/score")
    best_run(model, batches, [0.3, 0.5, 0.4, 0.2], hook).train(0, 40)
    assert hook.describe() == (
        f"The best test/score was 0.50000 at iteration 19: {tmp_path}/model_best.pth"
    )
    (tmp_path / "model_best.pth").rename(tmp_path / "model_best")  # as if it were of a sharded run
    assert hook.describe().endswith("/model_best")
    hook = BestCheckpointer(10, Checkpointer(model, tmp_path / "other"), "+test/skore")
    best_run(model, batches, [0.3, 0.5, 0.4, 0.2], hook).train(0, 40)
    assert hook.describe() == "There is no best checkpoint: no evaluation had 'test/skore'"
    assert "No metric 'test/skore' at iteration 9: no best checkpoint is saved; did you" in log.text
