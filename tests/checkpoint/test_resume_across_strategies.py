"""Runs that are resumed under another strategy or another number of processes."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from engine.checkpoint import Checkpointer, CheckpointError
from engine.config import CfgNode, get_cfg
from engine.defaults import DefaultTrainer
from engine.parallel import comm

pytestmark = pytest.mark.slow


def config(folder: Path, strategy: str) -> CfgNode:
    cfg = get_cfg()
    cfg.merge_from_other_cfg(
        {
            "OUTPUT_DIR": str(folder),
            "SEED": 0,
            "MODEL": {
                "META_ARCHITECTURE": "engine.zoo.digits:DigitsMLP",
                "ARGS": {"hidden": 15},
            },
            "DATASETS": {"TRAIN": ["digits_train"], "TEST": ["digits_test"]},
            "DATALOADER": {"NUM_WORKERS": 0},
            "SOLVER": {
                "MAX_ITER": 12,
                "BASE_LR": 0.01,
                "WARMUP_ITERS": 8,
                "CHECKPOINT_PERIOD": 6,
                "IMS_PER_BATCH": 32,
                "OPTIMIZER": {"NAME": "AdamW"},
                "CLIP_GRADIENTS": {"ENABLED": True, "CLIP_TYPE": "full_model"},
            },
            "EMA": {"ENABLED": True, "DECAY": 0.8},
            "CHECKPOINT": {"BEST_METRIC": "+classification/accuracy"},
            "TEST": {"BATCH_SIZE": 100, "EVAL_PERIOD": 4},
            "PARALLEL": {"STRATEGY": strategy},
        }
    )
    return cfg


def train(folder: Path, strategy: str, resume_from: Path | None = None) -> dict:
    """Twelve steps; or the last six, from the checkpoint that another run has made in between."""
    if resume_from is not None and comm.is_main_process():
        folder.mkdir(parents=True)
        (saved,) = resume_from.glob("model_0000005*")
        shutil.copy(resume_from / "manifest.json", folder)
        (shutil.copytree if saved.is_dir() else shutil.copy)(saved, folder / saved.name)
    comm.synchronize()
    torch.manual_seed(comm.get_rank())
    trainer = DefaultTrainer(config(folder, strategy))
    if resume_from is None:
        trainer.checkpointer.load(str(folder.parent / "start.pth"))
    else:
        trainer.resume_or_load()
    first, losses = trainer.start_iter, []

    def note_loss(model, batch, output):
        if model.training:
            losses.append((sum(output.values()) if isinstance(output, dict) else output).item())

    trainer.model.register_forward_hook(note_loss)
    results = trainer.train()
    state = trainer.checkpointer.model.state_dict()
    of_ranks = comm.all_gather(losses[-6:])
    return {
        "first": first,
        "losses": [sum(values) / len(values) for values in zip(*of_ranks, strict=True)],
        "weights": {
            name: getattr(value, "full_tensor", lambda value=value: value)().tolist()
            for name, value in state.items()
        },
        "accuracy": results["classification"]["accuracy"],
    }


def work(rank: int, folder: Path) -> dict:
    torch.set_num_threads(1)
    one, ddp, fsdp = folder / "one", folder / "ddp", folder / "fsdp"
    seen = {
        "ddp": train(ddp, "ddp"),
        "fsdp": train(fsdp, "fsdp"),
        "one to fsdp": train(folder / "a", "fsdp", one),
        "ddp to fsdp": train(folder / "b", "fsdp", ddp),
        "fsdp to ddp": train(folder / "c", "ddp", fsdp),
        "fsdp to fsdp": train(folder / "d", "fsdp", fsdp),
    }
    if rank == 1:
        os.remove(fsdp / "model_final" / "__1_0.distcp")
    comm.synchronize()
    damaged = DefaultTrainer(config(fsdp, "fsdp"))
    damaged.resume_or_load()
    seen["after damage"] = damaged.start_iter
    seen["full disk"] = fail_on_one_rank(damaged.checkpointer)
    seen["names"] = sorted(path.name for path in fsdp.iterdir() if path.is_dir())
    seen["unshared"] = refusal_of_unshared(folder / f"machine{rank}")
    return seen


def refusal_of_unshared(folder: Path) -> str:
    """Of a resume where each rank has a checkpoint of the same name in a folder of its own."""
    checkpointer = Checkpointer(torch.nn.Linear(1, 1), folder, save_to_disk=True)
    checkpointer.save("model_0000005", iteration=comm.get_rank())
    with pytest.raises(CheckpointError) as refused:
        checkpointer.resume_or_load("")
    return str(refused.value)


def fail_on_one_rank(checkpointer: Checkpointer) -> list[str]:
    """What all ranks say of a save for which one of them may not write as much."""
    import resource

    no_limit = resource.RLIM_INFINITY
    if comm.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, no_limit))
    try:
        checkpointer.save("model_0000099")
        message = "saved"
    except OSError as error:
        message = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (no_limit, no_limit))
    return comm.all_gather(message)


@pytest.fixture(scope="module", autouse=True)
def alone(folder):
    """A run of this process alone, and the weights that all runs start from."""
    torch.manual_seed(0)
    model = DefaultTrainer.build_model(config(folder, "none"))
    torch.save(model.state_dict(), folder / "start.pth")
    return train(folder / "one", "ddp")


def assert_same_run(one: dict, other: dict) -> None:
    assert one["losses"] == pytest.approx(other["losses"], abs=1e-5)
    for name, weight in one["weights"].items():
        assert torch.allclose(torch.tensor(weight), torch.tensor(other["weights"][name]), atol=1e-5)
    assert one["accuracy"] == pytest.approx(other["accuracy"])


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_train_as_one_does(alone, processes, strategy):
    assert_same_run(processes[0][strategy], alone)
    assert processes[0][strategy] == processes[1][strategy]


@pytest.mark.parametrize("change", ["one to fsdp", "ddp to fsdp", "fsdp to ddp", "fsdp to fsdp"])
def test_a_run_goes_on_as_if_nothing_had_changed(alone, processes, change):
    assert processes[0][change]["first"] == 6
    assert_same_run(processes[0][change], alone)


def test_one_process_goes_on_with_a_run_of_two_that_was_sharded(alone, processes, folder):
    resumed = train(folder / "e", "fsdp", folder / "fsdp")
    assert resumed["first"] == 6
    assert_same_run(resumed, alone)


def test_ranks_pass_over_a_damaged_folder_together(processes):
    assert [seen["after damage"] for seen in processes] == [12, 12]  # from model_0000011


def test_ranks_that_have_different_checkpoints_under_one_name_do_not_go_on(processes):
    for seen in processes:
        assert "machine1/model_0000005.pth on " in seen["unshared"]
        assert "must share their OUTPUT_DIR" in seen["unshared"]


def test_a_rank_that_cannot_write_has_all_ranks_give_up_the_save(processes):
    own, *_ = processes[0]["full disk"]
    assert "rank 1: [Errno 27] File too large" in own
    assert processes[0]["full disk"] == processes[1]["full disk"]
    assert processes[0]["names"] == ["model_0000005", "model_0000011", "model_best", "model_final"]
