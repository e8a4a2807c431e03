import copy
import math
import os
from collections import deque

import pytest
import torch
from fvcore.common.checkpoint import Checkpointer as FvcoreCheckpointer

from engine import EventStorage, SimpleTrainer
from engine.checkpoint import Checkpointer
from engine.events import JSONWriter, TensorboardXWriter
from engine.events.nonfinite import NonFiniteGuard
from engine.hooks import (
    BestCheckpointer,
    CallbackHook,
    HookBase,
    LRScheduler,
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


def test_it_saves_every_period_and_at_the_end(model, batches, tmp_path):
    trainer = make_trainer(model, batches, PeriodicCheckpointer(Checkpointer(model, tmp_path), 10))
    trainer.train(0, 25)
    assert names(tmp_path) == [
        "last_checkpoint",
        "model_0000009.pth",
        "model_0000019.pth",
        "model_final.pth",
    ]
    assert last(tmp_path) == "model_final.pth"
    loaded = [torch.load(path, weights_only=True) for path in sorted(tmp_path.glob("*.pth"))]
    assert [checkpoint["iteration"] for checkpoint in loaded] == [9, 19, 24]


class OldLoop(SimpleTrainer):
    """Has the loop written out, and does not count `iter` up after its last step."""

    def train(self, start_iter: int, max_iter: int) -> None:
        self.start_iter, self.max_iter = start_iter, max_iter
        with EventStorage(start_iter) as self.storage:
            self.before_train()
            for self.iter in range(start_iter, max_iter):
                self.before_step()
                self.run_step()
                self.after_step()
            self.after_train()


@pytest.mark.parametrize("start_iter", [0, 11])
def test_a_loop_of_the_users_own_ends_with_the_final_file(model, batches, tmp_path, start_iter):
    trainer = OldLoop(model, batches, torch.optim.SGD(model.parameters(), 0.01))
    checkpointer = Checkpointer(model, tmp_path, trainer=trainer)
    trainer.register_hooks([PeriodicCheckpointer(checkpointer, 100)])
    trainer.train(start_iter, 12)
    assert names(tmp_path) == ["last_checkpoint", "model_final.pth"]
    saved = torch.load(tmp_path / "model_final.pth", weights_only=True)
    assert saved["iteration"] == saved["trainer"]["iteration"] == 11


def test_a_period_of_iterations_is_a_number_that_can_be_read_and_set(model, batches, tmp_path):
    class Odd(PeriodicCheckpointer):
        def after_step(self) -> None:
            if self.period == 10 and self.trainer.iter in (3, self.max_iter - 2):
                self.save(f"odd_{self.trainer.iter}")

    usual = PeriodicCheckpointer(Checkpointer(model, tmp_path), 5)
    odd = Odd(Checkpointer(model, tmp_path), 10)
    usual.period *= 3
    make_trainer(model, batches, usual, odd).train(0, 20)
    assert names(tmp_path)[1:] == [
        "model_0000014.pth",
        "model_final.pth",
        "odd_18.pth",
        "odd_3.pth",
    ]


def test_the_period_may_be_in_epochs(model, batches, tmp_path):
    checkpointer = Checkpointer(model, tmp_path)
    make_trainer(model, batches, PeriodicCheckpointer(checkpointer, "1 epoch")).train(0, 13)
    assert names(tmp_path)[1:] == ["model_0000005.pth", "model_0000011.pth", "model_final.pth"]


def test_a_run_is_resumed_where_it_ended_with_its_schedule(model, batches, tmp_path):
    def make_run(model):
        trainer = make_trainer(model, batches, lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 3)
        checkpointer = Checkpointer(model, tmp_path, trainer=trainer)
        hooks = [LRScheduler(scheduler=scheduler), PeriodicCheckpointer(checkpointer, 10)]
        trainer.register_hooks(hooks)
        return trainer, scheduler, checkpointer

    trainer, _, _ = make_run(copy.deepcopy(model))
    trainer.train(0, 12)
    resumed, scheduler, checkpointer = make_run(model)
    checkpointer.resume_or_load("")
    assert (resumed.iter, scheduler.last_epoch) == (11, 12)
    (rate,) = (group["lr"] for group in resumed.optimizer.param_groups)
    assert rate == trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.1**4)
    resumed.train(12, 15)
    assert scheduler.last_epoch == 15


def test_a_stopped_run_is_saved_under_its_last_iteration(model, batches, tmp_path):
    checkpointer = Checkpointer(model, tmp_path)
    trainer = make_trainer(model, batches, stop_at(6), PeriodicCheckpointer(checkpointer, 5))
    trainer.train(0, 20)
    assert names(tmp_path) == ["last_checkpoint", "model_0000004.pth", "model_0000006.pth"]
    assert last(tmp_path) == "model_0000006.pth"
    assert saved_weights(tmp_path / "model_0000006.pth") == weights(model)


def test_a_run_that_stops_before_its_first_step_has_nothing_to_save(model, batches, tmp_path):
    hooks = [
        CallbackHook(before_train=lambda trainer: trainer.stop("no time left")),
        PeriodicCheckpointer(Checkpointer(model, tmp_path), 5),
    ]
    make_trainer(model, batches, *hooks).train(0, 20)
    assert names(tmp_path) == []


def test_a_failed_run_keeps_the_checkpoints_it_had(model, batches, tmp_path):
    checkpointer = Checkpointer(model, tmp_path)
    hooks = [fail_at(6), PeriodicCheckpointer(checkpointer, 5)]
    with pytest.raises(RuntimeError, match="the step failed"):
        make_trainer(model, batches, *hooks).train(0, 20)
    assert names(tmp_path) == ["last_checkpoint", "model_0000004.pth"]


def test_a_checkpoint_holds_what_all_other_hooks_did_in_its_step(model, batches, tmp_path):
    trainer = make_trainer(model, batches)
    checkpointer = Checkpointer(model, tmp_path, trainer=trainer)
    trainer.register_hooks(
        [
            PeriodicCheckpointer(checkpointer, 5),
            CallbackHook(after_step=lambda trainer: setattr(trainer.storage, "seen", trainer.iter)),
        ]
    )
    trainer.train(0, 5)
    checkpoint = torch.load(tmp_path / "model_0000004.pth", weights_only=True)
    assert checkpoint["trainer"]["storage"]["notes"] == {"seen": 4}


# --- keeping the last ones ---------------------------------------------------------------------


def test_only_the_last_ones_are_kept(model, batches, tmp_path):
    hook = PeriodicCheckpointer(Checkpointer(model, tmp_path), 2, max_to_keep=2)
    make_trainer(model, batches, hook).train(0, 10)
    assert names(tmp_path)[1:] == ["model_0000007.pth", "model_0000009.pth", "model_final.pth"]


def test_an_old_one_is_deleted_only_when_the_new_one_is_there(model, batches, tmp_path):
    class Watching(Checkpointer):
        def save(self, name, *args, **kwargs) -> None:
            before.append(names(tmp_path))
            super().save(name, *args, **kwargs)

    before: list[list[str]] = []
    hook = PeriodicCheckpointer(Watching(model, tmp_path), 2, max_to_keep=1)
    make_trainer(model, batches, hook).train(0, 6)
    assert before == [
        [],
        ["last_checkpoint", "model_0000001.pth"],
        ["last_checkpoint", "model_0000003.pth"],
        ["last_checkpoint", "model_0000005.pth"],
    ]


def test_a_save_that_fails_deletes_nothing(model, batches, tmp_path, monkeypatch):
    checkpointer = Checkpointer(model, tmp_path)
    hook = PeriodicCheckpointer(checkpointer, 2, max_to_keep=1)
    trainer = make_trainer(model, batches, hook)
    trainer.train(0, 2)

    def full_disk(data, file) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="no space left"):
        trainer.train(2, 4)
    assert names(tmp_path) == ["last_checkpoint", "model_0000001.pth", "model_final.pth"]


@pytest.mark.parametrize("background", [False, True])
def test_on_a_full_disk_training_goes_on_and_saves_again_when_there_is_space(
    small_disk, batches, log, background
):
    model = Wide()
    checkpointer = Checkpointer(model, small_disk, background=background)
    hook = PeriodicCheckpointer(checkpointer, 2, max_to_keep=1)

    def fill_and_free(trainer) -> None:
        if background:  # or what is on the disk would depend on who is faster
            checkpointer._background._thread.submit(int).result()
        if trainer.iter == 2:
            (small_disk / "others").write_bytes(bytes(220_000))
        if trainer.iter == 4:
            assert last(small_disk) == "model_0000001.pth"
            assert names(small_disk) == ["last_checkpoint", "model_0000001.pth", "others"]
        if trainer.iter == 6:
            (small_disk / "others").unlink()

    trainer = make_trainer(model, batches, hook, CallbackHook(before_step=fill_and_free))
    trainer.train(0, 8)
    assert names(small_disk) == ["last_checkpoint", "model_0000007.pth", "model_final.pth"]
    assert log.text.count("is not saved (OSError: [Errno 28] No space left on device") == 2
    assert "The checkpoint before it is kept." in log.text


def test_a_last_checkpoint_that_cannot_be_saved_is_an_error(small_disk, batches):
    model = Wide()
    (small_disk / "others").write_bytes(bytes(250_000))
    for background in (False, True):
        checkpointer = Checkpointer(model, small_disk, background=background)
        trainer = make_trainer(model, batches, PeriodicCheckpointer(checkpointer, 100))
        with pytest.raises(OSError, match="No space left on device"):
            trainer.train(0, 2)


def test_a_run_with_nan_weights_keeps_its_last_good_checkpoint(model, batches, tmp_path, log):
    def spoil(trainer) -> None:
        if trainer.iter == 3:
            model.linear.bias.data.fill_(math.nan)

    hook = PeriodicCheckpointer(Checkpointer(model, tmp_path), 2, max_to_keep=1)
    trainer = make_trainer(model, batches, hook, CallbackHook(after_step=spoil))
    trainer.nonfinite = NonFiniteGuard("ignore")
    with pytest.raises(FloatingPointError, match=r"linear\.\w+ is NaN or infinite"):
        trainer.train(0, 8)
    assert names(tmp_path) == ["last_checkpoint", "model_0000001.pth"]
    assert log.text.count("is not saved (FloatingPointError: linear.weight is NaN") >= 1


def test_on_an_accelerator_a_bad_loss_found_at_a_save_ends_the_run(
    model, batches, tmp_path, monkeypatch
):
    monkeypatch.setattr("engine.events.scalar.DEFERS_ALL", True)
    batches[2] = (torch.full((4, 4), math.inf), batches[2][1])
    trainer = make_trainer(
        model, batches, PeriodicCheckpointer(Checkpointer(model, tmp_path), 4), lr=0.0
    )
    with pytest.raises(FloatingPointError, match="at iteration 2"):
        trainer.train(0, 8)


def test_checkpoints_of_another_run_in_the_folder_are_not_deleted(model, batches, tmp_path):
    for start in (0, 4):  # the second does not resume the first
        hook = PeriodicCheckpointer(Checkpointer(model, tmp_path), 2, max_to_keep=1)
        make_trainer(model, batches, hook).train(start, start + 4)
    assert names(tmp_path)[1:] == ["model_0000003.pth", "model_0000007.pth", "model_final.pth"]


def test_a_run_that_starts_anew_and_dies_before_its_first_save_is_not_resumed_as_the_old_one(
    model, batches, tmp_path, log
):
    def start(*hooks) -> None:
        checkpointer = Checkpointer(model, tmp_path)
        periodic = PeriodicCheckpointer(checkpointer, 4)
        make_trainer(model, batches, periodic, *hooks).train(0, 8)

    start()
    assert last(tmp_path) == "model_final.pth"
    with pytest.raises(RuntimeError, match="the step failed"):
        start(fail_at(2))
    assert Checkpointer(model, tmp_path).resume_or_load("") == {}
    assert not Checkpointer(model, tmp_path).has_checkpoint()
    assert f"Nothing to resume in {tmp_path}: the last run there ended before its" in log.text
    assert names(tmp_path)[1:] == ["model_0000003.pth", "model_0000007.pth", "model_final.pth"]
    with pytest.raises(RuntimeError, match="the step failed"):
        start(fail_at(5))
    assert Checkpointer(model, tmp_path).resume_or_load("")["iteration"] == 3


def test_only_files_of_its_prefix_are_deleted(model, batches, tmp_path):
    others = [
        "ema_0000001.pth",
        "model_best.pth",
        "model_best_0000001.pth",
        "model_0000001.pth.bak",
        "model_0000001.safetensors",
        "model_50.pth",
        "my_model_0000001.pth",
        "xmodel_0000001.pth",
    ]
    for name in others:
        (tmp_path / name).touch()
    hook = PeriodicCheckpointer(Checkpointer(model, tmp_path), 2, max_to_keep=1)
    make_trainer(model, batches, hook).train(0, 8)
    kept = ["last_checkpoint", "model_0000007.pth", "model_final.pth"]
    assert names(tmp_path) == sorted(others + kept)


def test_a_prefix_is_taken_literally(model, batches, tmp_path):
    (tmp_path / "axb_0000000.pth").touch()
    checkpointer = Checkpointer(model, tmp_path)
    hook = PeriodicCheckpointer(checkpointer, 2, max_to_keep=1, file_prefix="a.b")
    make_trainer(model, batches, hook).train(0, 4)
    assert names(tmp_path) == [
        "a.b_0000003.pth",
        "a.b_final.pth",
        "axb_0000000.pth",
        "last_checkpoint",
    ]


def test_a_resumed_run_deletes_those_of_the_run_before(model, batches, tmp_path):
    for start, end in [(0, 6), (6, 10)]:
        checkpointer = Checkpointer(model, tmp_path)
        checkpointer.resume_or_load("")
        hook = PeriodicCheckpointer(checkpointer, 2, max_to_keep=2)
        make_trainer(model, batches, hook).train(start, end)
    assert names(tmp_path)[1:] == ["model_0000007.pth", "model_0000009.pth", "model_final.pth"]


def test_a_run_that_starts_over_in_a_folder_keeps_its_own_checkpoints(model, batches, tmp_path):
    (tmp_path / "model_0000099.pth").touch()
    hook = PeriodicCheckpointer(Checkpointer(model, tmp_path), 2, max_to_keep=1)
    make_trainer(model, batches, hook, stop_at(4)).train(0, 10)
    assert last(tmp_path) == "model_0000004.pth"
    assert names(tmp_path)[1:] == ["model_0000004.pth", "model_0000099.pth"]


@pytest.mark.parametrize("options", [{}, {"save_dir": "missing", "save_to_disk": False}])
def test_what_does_not_save_does_not_delete(model, batches, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model_0000000.pth").touch()
    hook = PeriodicCheckpointer(Checkpointer(model, **options), 2, max_to_keep=1)
    make_trainer(model, batches, hook).train(0, 6)
    assert names(tmp_path) == ["model_0000000.pth"]


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_none_is_refused(model, keep):
    with pytest.raises(ValueError, match=f"at least 1, or None for all; got {keep}"):
        PeriodicCheckpointer(Checkpointer(model), 10, max_to_keep=keep)


def test_in_a_loop_of_ones_own_step_saves(model, tmp_path):
    hook = PeriodicCheckpointer(Checkpointer(model, tmp_path), 2, max_iter=5, max_to_keep=1)
    for iteration in range(5):
        hook.step(iteration, epoch=iteration // 3)
    assert names(tmp_path) == ["last_checkpoint", "model_0000003.pth", "model_final.pth"]
    final = torch.load(tmp_path / "model_final.pth", weights_only=True)
    assert (final["iteration"], final["epoch"]) == (4, 1)


def test_the_checkpointer_of_fvcore_works(model, batches, tmp_path):
    checkpointer = FvcoreCheckpointer(model, str(tmp_path))
    hooks = [
        PeriodicCheckpointer(checkpointer, 10, max_to_keep=1),
        BestCheckpointer(10, checkpointer, "+test/score"),
    ]
    best_run(model, batches, [0.3, 0.4, 0.35, 0.2], *hooks).train(0, 40)
    assert names(tmp_path) == [
        "last_checkpoint",
        "model_0000039.pth",
        "model_best.pth",
        "model_final.pth",
    ]
    assert last(tmp_path) == "model_final.pth"


def test_a_step_of_a_subclass_is_called_in_each_step(model, batches, tmp_path):
    class Own(PeriodicCheckpointer):
        calls = 0

        def step(self, iteration, **extra):
            self.calls += 1
            super().step(iteration, **extra)

    hook = Own(Checkpointer(model, tmp_path), 5)
    make_trainer(model, batches, hook).train(0, 10)
    assert hook.calls == 10
    assert names(tmp_path) == [
        "last_checkpoint",
        "model_0000004.pth",
        "model_0000009.pth",
        "model_final.pth",
    ]


def test_a_checkpointer_with_a_save_of_its_own_gets_what_is_to_be_saved(model, batches, tmp_path):
    class Own(Checkpointer):
        def save(self, name, **extra):
            torch.save({"model": self.model.state_dict(), **extra}, tmp_path / f"{name}.pth")

    checkpointer = Own(model, tmp_path)
    hooks = [
        PeriodicCheckpointer(checkpointer, 10, max_to_keep=1),
        BestCheckpointer(10, checkpointer, "+test/score"),
    ]
    best_run(model, batches, [0.3, 0.4, 0.35, 0.2], *hooks).train(0, 40)
    saved = torch.load(tmp_path / "model_best.pth", weights_only=True)
    assert saved.keys() == {"model", "iteration"}


class Unsavable(HookBase):
    """Has seen files, and would save their names in a deque."""

    def state_dict(self):
        return {"seen": deque(["a.png"])}


def test_a_state_that_cannot_be_saved_is_refused_before_the_first_step(model, batches, tmp_path):
    trainer = make_trainer(model, batches, Unsavable())
    checkpointer = Checkpointer(model, tmp_path, trainer=trainer)
    trainer.register_hooks([PeriodicCheckpointer(checkpointer, 10)])
    with pytest.raises(TypeError, match=r"trainer\['hooks'\]\['Unsavable'\]\['seen'\] is a coll"):
        trainer.train(0, 25)
    assert trainer.iter == 0


def test_a_program_may_change_to_another_folder(model, batches, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    writers = [JSONWriter("run/metrics.json"), TensorboardXWriter("run")]
    trainer = make_trainer(
        model,
        batches,
        PeriodicCheckpointer(Checkpointer(model, "run"), 10),
        PeriodicWriter(writers, 5),
        CallbackHook(before_step=lambda t: t.iter == 12 and os.chdir("elsewhere")),
    )
    trainer.train(0, 25)
    assert last(tmp_path / "run") == "model_final.pth"
    assert len((tmp_path / "run" / "metrics.json").read_text().splitlines()) == 5
    assert os.listdir() == []
