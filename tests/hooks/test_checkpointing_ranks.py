"""What is refused before a sharded model is saved by two processes, its last save, and hooks
that one rank alone has."""

from pathlib import Path

import torch
from torch import nn

from engine import SimpleTrainer
from engine.checkpoint import Checkpointer, sharded
from engine.hooks import BestCheckpointer, CallbackHook, PeriodicCheckpointer, checkpointing
from engine.parallel.ddp import create_ddp_model
from engine.parallel.fsdp import create_fsdp_model
from engine.utils import periods


class Summed(nn.Linear):
    def forward(self, batch):
        return {"loss_sum": super().forward(batch).sum()}


def train(folder: Path, fails: bool) -> str:
    """The error of a run that may fail when its steps are done."""

    def fail(trainer) -> None:
        if fails:
            raise ZeroDivisionError("at the end")

    model = create_fsdp_model(Summed(4, 4))
    trainer = SimpleTrainer(model, [torch.ones(2, 4)], torch.optim.SGD(model.parameters(), 0.1))
    checkpointer = Checkpointer(model, folder, trainer=trainer)
    saving = PeriodicCheckpointer(checkpointer, 1000)
    trainer.register_hooks([CallbackHook(after_train=fail), saving])
    try:
        trainer.train(0, 3)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def error_of_hook_on_rank_0_alone(rank: int, make_hook) -> str:
    model = create_fsdp_model(Summed(4, 4))
    trainer = SimpleTrainer(model, [torch.ones(2, 4)], torch.optim.SGD(model.parameters(), 0.1))
    trainer.register_hooks([make_hook(Checkpointer(model, ""))] if rank == 0 else [])
    try:
        trainer.train(0, 1)
    except ValueError as error:
        return str(error)
    return ""


def save_best_by_the_clock(rank: int, folder: Path) -> float | None:
    """The best of a metric that is looked at every "5 s", where clocks of ranks differ."""
    model = create_fsdp_model(Summed(4, 4))
    trainer = SimpleTrainer(model, [torch.ones(2, 4)], torch.optim.SGD(model.parameters(), 0.1))
    best = BestCheckpointer("5 s", Checkpointer(model, folder, trainer=trainer), "+accuracy")
    store = CallbackHook(after_step=lambda run: run.storage.put_scalar("accuracy", run.iter))
    trainer.register_hooks([store, best])
    trainer.iter, clock = 0, periods.monotonic
    periods.monotonic = lambda: trainer.iter * (1.0, 3.7)[rank]
    trainer.train(0, 12)
    periods.monotonic = clock
    return best.best_metric


def train_with_one_more_on_rank_0(rank: int, folder: Path) -> int:
    """The iterations of a run in which rank 0 alone has another hook that saves, the first one."""
    model = create_ddp_model(Summed(4, 4))
    trainer = SimpleTrainer(model, [torch.ones(2, 4)], torch.optim.SGD(model.parameters(), 0.1))
    mine = PeriodicCheckpointer(Checkpointer(model, folder / "mine", trainer=trainer), 3)
    ours = PeriodicCheckpointer(Checkpointer(model, folder / "ours", trainer=trainer), 4)
    trainer.register_hooks([mine, ours] if rank == 0 else [ours])
    trainer.train(0, 6)
    return trainer.iter


def train_on_uneven_epochs(rank: int, folder: Path) -> int:
    """The iterations of a run that is saved after each epoch, of 2 steps or of 3."""
    model = create_ddp_model(Summed(4, 4))
    batches = [torch.ones(2, 4)] * (2 + rank)
    trainer = SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.1))
    checkpointer = Checkpointer(model, folder, trainer=trainer)
    trainer.register_hooks([PeriodicCheckpointer(checkpointer, "1 epoch")])
    trainer.train(0, 5)
    return trainer.iter


def work(rank: int, folder: Path) -> dict:
    one_more = train_with_one_more_on_rank_0(rank, folder / "one_more")
    refused = [
        error_of_hook_on_rank_0_alone(rank, lambda saves: PeriodicCheckpointer(saves, 1)),
        error_of_hook_on_rank_0_alone(rank, lambda saves: BestCheckpointer(1, saves, "acc", "max")),
    ]
    seen = {"one_more": one_more, "refused": refused, "all": train(folder / "all", True)}
    seen["uneven"] = train_on_uneven_epochs(rank, folder / "uneven")
    seen["best"] = save_best_by_the_clock(rank, folder / "best")
    sharded.LONGEST_DELAY = 0.5
    seen["unshared"] = train(folder / f"machine{rank}", False)
    checkpointing.PATIENCE = 1.0
    seen["one"] = train(folder / "one", rank == 1)
    return seen


def test_ranks_do_not_wait_where_one_alone_has_one_more_that_comes_first(processes, folder):
    assert [process["one_more"] for process in processes] == [6, 6]
    assert (folder / "one_more" / "mine" / "model_0000002.pth").exists()
    assert (folder / "one_more" / "ours" / "model_0000003.pth").exists()


def test_ranks_do_not_wait_for_each_other_where_their_epochs_are_not_equally_long(
    processes, folder
):
    assert [process["uneven"] for process in processes] == [5, 5]
    assert (folder / "uneven" / "model_0000003.pth").exists()


def test_a_hook_that_saves_shards_is_refused_where_not_all_ranks_have_it(processes):
    for seen in processes:
        for name, message in zip(("Periodic", "Best"), seen["refused"], strict=True):
            assert message.startswith(f"{name}Checkpointer waits for all ranks, so all must have")


def test_a_folder_that_ranks_do_not_share_is_refused_before_the_first_step(processes, folder):
    for seen in processes:
        assert seen["unshared"].startswith("CheckpointError: ")
        assert "machine1 on " in seen["unshared"]
        assert "saved in one that all machines share" in seen["unshared"]
    assert list((folder / "machine0").iterdir()) == []


def test_where_all_ranks_have_failed_alike_the_run_is_saved(processes, folder):
    assert [process["all"] for process in processes] == ["ZeroDivisionError: at the end"] * 2
    assert (folder / "all" / "model_final" / "files.json").exists()


def test_ranks_look_for_the_best_in_the_same_iterations(processes, folder):
    assert [process["best"] for process in processes] == [11, 11]
    assert (folder / "best" / "model_best" / "files.json").exists()


def test_where_one_has_failed_it_does_not_wait_for_the_others(processes, folder):
    assert processes[1]["one"] == "ZeroDivisionError: at the end"
    assert processes[0]["one"] != ""  # it waits for the other until that is gone
    assert not (folder / "one" / "model_final").exists()
