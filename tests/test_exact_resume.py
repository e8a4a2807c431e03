"""A run that was killed and resumed is the run that never stopped, to the last bit.

What a kill leaves is the folder of the run as it is at that moment. So a hook copies the folder,
and the copy is resumed: one undisturbed run stands for many kills, and is the reference too. Real
kills, also in the middle of a write, are those of `tools/torture.py`.
"""

import runpy
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch.utils.data import Dataset

from engine import DefaultTrainer
from engine.config import get_cfg
from engine.data import DatasetCatalog, MetadataCatalog
from engine.data.digits import load_digits
from engine.data.fashion_mnist import FOLDER, load_fashion_mnist
from engine.data.images import LabelledImages
from engine.data.text import VOCABULARY, CharacterDataset
from engine.hooks import CallbackHook, Priority
from engine.utils.registry import locate

pytestmark = pytest.mark.usefixtures("log", "small_data")

COMPARE_RUNS = Path(__file__).parents[1] / "tools" / "compare_runs.py"
Comparison = runpy.run_path(str(COMPARE_RUNS), run_name="compare_runs")["Comparison"]

TRAINED_ON, TESTED_ON = 96, 32  # samples; with 2 × 8 of them in a step, an epoch is 6 iterations

SETTINGS = {
    "SEED": 0,
    "LOG_PERIOD": 5,
    "SOLVER": {
        "MAX_ITER": 18,
        "IMS_PER_BATCH": 8,
        "ACCUMULATE": 2,
        "OPTIMIZER": {"NAME": "AdamW"},
        "BASE_LR": 0.01,
        "LR_SCHEDULER_NAME": "WarmupCosineLR",
        "WARMUP_ITERS": 5,
        "CHECKPOINT_PERIOD": 4,
        "CLIP_GRADIENTS": {"ENABLED": True, "CLIP_TYPE": "full_model"},
        "AMP": {"ENABLED": True, "PRECISION": "bfloat16"},
    },
    "CHECKPOINT": {"KEEP_LAST": 2},
    "TEST": {"EVAL_PERIOD": 3, "BATCH_SIZE": 16},
    "EMA": {"ENABLED": True, "DECAY": 0.8},
    "EARLY_STOPPING": {"PATIENCE": 50},  # it counts, but the run goes to its end
}
"""Everything on that has state; checkpoints at 3, 7, 11, 15, epochs end at 5, 11, 17."""

TASKS = {
    "digits": {
        "MODEL": {
            "META_ARCHITECTURE": "engine.zoo.digits:DigitsCNN",
            "ARGS": {"width": 4, "dropout": 0.2},
        },
        "DATALOADER": {"MAPPER": "engine.zoo.digits:augment"},
        "EARLY_STOPPING": {"METRIC": "+classification/accuracy"},
        "CHECKPOINT": {"BEST_METRIC": "-classification/loss"},
    },
    "fashion_mnist": {
        "MODEL": {
            "META_ARCHITECTURE": "engine.zoo.fashion_mnist:FashionCNN",
            "ARGS": {"width": 2, "dropout": 0.2},
        },
        "DATALOADER": {"MAPPER": "engine.zoo.fashion_mnist:augment"},
        "EARLY_STOPPING": {"METRIC": "+classification/accuracy"},
        "CHECKPOINT": {"BEST_METRIC": "-classification/loss"},
    },
    "characters": {
        "TRAINER": "engine.zoo.char_lm:Trainer",
        "MODEL": {
            "META_ARCHITECTURE": "engine.zoo.char_lm:CharacterGRU",
            "ARGS": {"embedding": 8, "hidden": 16, "dropout": 0.2},
        },
        "DATALOADER": {"MAPPER": f"{__name__}:replace_some"},
        "EARLY_STOPPING": {"METRIC": "-language_model/loss"},
        "CHECKPOINT": {"BEST_METRIC": "-language_model/loss"},
    },
}

needs_fashion_mnist = pytest.mark.skipif(
    not Path(FOLDER).exists(), reason="needs Debian's package dataset-fashion-mnist"
)
each_task = pytest.mark.parametrize(
    "task", ["digits", pytest.param("fashion_mnist", marks=needs_fashion_mnist), "characters"]
)


def replace_some(sample: dict, generator: torch.Generator) -> dict:
    """An augmentation of text: some of its characters are others."""
    tokens = sample["tokens"].clone()
    chosen = torch.rand(len(tokens), generator=generator) < 0.1
    tokens[chosen] = torch.randint(len(VOCABULARY), (int(chosen.sum()),), generator=generator)
    return {"tokens": tokens}


@pytest.fixture(scope="module")
def small_data() -> Iterator[None]:
    """Registers small parts of the data sets: `small_digits_train`, …"""

    @cache
    def load(task: str, split: Literal["train", "test"], size: int) -> Dataset:
        if task == "characters":
            return CharacterDataset(f"{split}: {Path(__file__).read_text()}"[: 16 * size + 1], 16)
        full = (load_digits if task == "digits" else load_fashion_mnist)(split)
        return LabelledImages(full.images[:size], torch.tensor(full.labels[:size]), full.scale)

    names = []
    for task in TASKS:
        kind = "language_model" if task == "characters" else "classification"
        for split, size in {"train": TRAINED_ON, "test": TESTED_ON}.items():
            names.append(f"small_{task}_{split}")
            DatasetCatalog.register(names[-1], partial(load, task, split, size))
            MetadataCatalog.get(names[-1]).set(evaluator_type=kind)
    yield
    for name in names:
        DatasetCatalog.remove(name)
        MetadataCatalog.remove(name)


@dataclass(frozen=True)
class Kill:
    """A kill at a point of the loop, after the hooks with a lower priority."""

    point: str
    iteration: int | None = None
    priority: int = Priority.NORMAL

    def as_hook(self, folder: Path) -> CallbackHook:
        """A hook that copies to `folder` what the kill would leave."""

        def copy(trainer: DefaultTrainer, *_: object) -> None:
            if self.iteration in (None, trainer.iter) and not folder.exists():
                trainer.checkpointer.wait()
                shutil.copytree(trainer.cfg.OUTPUT_DIR, folder)

        return CallbackHook(**{self.point: copy})


class Experiment:
    """A task with some settings: run it undisturbed, then resume what kills left of it."""

    def __init__(self, folder: Path, task: str, *overrides: object) -> None:
        self.folder = folder
        self.reference = folder / "reference"
        self._task, self._overrides = task, overrides

    def run(self, **kills: Kill) -> DefaultTrainer:
        """The reference; what a kill would leave is in the folder of its name."""
        return self._train(self.reference, kills)

    def resume(self, name: str, overrides: tuple = (), **kills: Kill) -> DefaultTrainer:
        """Go on in the folder that a kill left, to be killed again or not."""
        # What the new process draws before it has loaded the checkpoint must not matter.
        seed = 99 if (self.folder / name / "last_checkpoint").exists() else 0
        return self._train(self.folder / name, kills, overrides, seed)

    def assert_exact(self, name: str) -> None:
        """The run in this folder has left the same as the reference, but for times."""
        assert Comparison(self.reference, self.folder / name).notes == {}, name

    def assert_kills_cannot_be_seen(self, **kills: Kill) -> DefaultTrainer:
        reference = self.run(**kills)
        for name in kills:
            self.resume(name)
            self.assert_exact(name)
        return reference

    def _train(self, folder, kills, overrides=(), seed=0) -> DefaultTrainer:
        cfg = get_cfg()
        for settings in (SETTINGS, TASKS[self._task]):
            cfg.merge_from_other_cfg(settings)
        cfg.DATASETS.TRAIN = [f"small_{self._task}_train"]
        cfg.DATASETS.TEST = [f"small_{self._task}_test"]
        cfg.DATALOADER.NUM_WORKERS = 0
        cfg.OUTPUT_DIR = str(folder)
        cfg.merge_from_list([*self._overrides, *overrides])
        cfg.freeze()
        torch.manual_seed(seed)
        trainer = (locate(cfg.TRAINER) if cfg.TRAINER else DefaultTrainer)(cfg)
        for name, kill in kills.items():
            trainer.register_hooks([kill.as_hook(self.folder / name)], kill.priority)
        trainer.resume_or_load(resume=True)
        trainer.train()
        return trainer


@pytest.fixture
def experiment(tmp_path):
    return lambda task, *overrides: Experiment(tmp_path, task, *overrides)


# --- everything on ------------------------------------------------------------------------------

MIDDLE_OF_EPOCH, END_OF_EPOCH = Kill("before_step", 9), Kill("before_step", 12)


@pytest.mark.parametrize("workers", [0, 2])
@each_task
def test_a_resumed_run_ends_with_the_same_bits(experiment, task, workers):
    runs = experiment(task, "DATALOADER.NUM_WORKERS", workers)
    runs.assert_kills_cannot_be_seen(killed=MIDDLE_OF_EPOCH)


@each_task
def test_a_run_that_is_killed_twice_and_resumed_with_other_workers_is_exact(experiment, task):
    runs = experiment(task)
    runs.run(killed=MIDDLE_OF_EPOCH)
    first = runs.resume("killed", ("DATALOADER.NUM_WORKERS", 2), killed_again=END_OF_EPOCH)
    second = runs.resume("killed_again")
    assert (first.start_iter, second.start_iter) == (8, 12)
    runs.assert_exact("killed")
    runs.assert_exact("killed_again")


@pytest.mark.slow
def test_a_kill_before_any_iteration_cannot_be_seen(experiment):
    kills = {f"before_{iteration}": Kill("before_step", iteration) for iteration in range(18)}
    experiment("digits").assert_kills_cannot_be_seen(**kills)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        "SOLVER.AMP.ENABLED=False SOLVER.ACCUMULATE=1 EMA.ENABLED=False",
        "SOLVER.AMP.PRECISION=float16",
        "EMA.START=10 EMA.PERIOD=3 EMA.BUFFERS=True",
        "SOLVER.OPTIMIZER.NAME=SGD SOLVER.OPTIMIZER.fused=True SOLVER.NESTEROV=True",
        "SOLVER.LR_SCHEDULER_NAME=WarmupMultiStepLR SOLVER.STEPS=[7,14] SOLVER.CHECKPOINT_PERIOD=5",
        "SOLVER.MOMENTUM_SCHEDULE.NAME=WarmupCosineLR SOLVER.MOMENTUM_SCHEDULE.END=0.5",
        "LOG_PERIOD=1 TEST.EVAL_PERIOD=4",
        "LOG_PERIOD=50 TEST.EVAL_PERIOD=0",
        "TEST.PRECISE_BN.ENABLED=True TEST.PRECISE_BN.NUM_ITER=2",
        "SOLVER.CHECKPOINT_PERIOD=1_epoch TEST.EVAL_PERIOD=2_epoch LOG_PERIOD=1_epoch",
        "CHECKPOINT.BACKGROUND=False",
        "SEED=-1",
    ],
)
def test_each_option_is_resumed_exactly(experiment, overrides):
    runs = experiment("digits", *(pair.replace("_epoch", " epoch") for pair in overrides.split()))
    runs.assert_kills_cannot_be_seen(middle=MIDDLE_OF_EPOCH, end=END_OF_EPOCH)


# --- the moments that are easy to get wrong -----------------------------------------------------


def test_what_a_kill_left_half_written_is_deleted(experiment):
    runs = experiment("digits", "SOLVER.AMP.ENABLED=False")
    runs.run(killed=END_OF_EPOCH)
    left = runs.folder / "killed" / "model_0000015.pth.0123abcd.tmp"
    left.write_bytes(b"half a checkpoint")
    runs.resume("killed")
    assert not left.exists()


def test_a_kill_around_an_evaluation_cannot_be_seen(experiment):
    runs = experiment("digits", "SOLVER.AMP.ENABLED=False")
    kills = {
        "before the first checkpoint": Kill("before_step", 2),
        "before an evaluation": Kill("before_eval", 8),
        "in an evaluation": Kill("after_eval_step", 8),
        "after it, before the best is saved": Kill("after_step", 11, Priority.LOW),
        "when the best is saved": Kill("after_step", 11, Priority.LOW + 10),
        "when metrics are written": Kill("after_step", 11, Priority.LOWEST - 1),
        "when the checkpoint is saved": Kill("after_step", 11, Priority.LOWEST),
    }
    runs.assert_kills_cannot_be_seen(**kills)


AT_THE_END = {
    "before the last evaluation": Kill("after_train", priority=Priority.HIGHEST),
    "before the best is saved": Kill("after_train", priority=Priority.LOW + 5),
    "before the last line is written": Kill("after_train", priority=Priority.VERY_LOW - 5),
    "before the last save": Kill("after_train", priority=Priority.LOWEST - 1),
    "when all is done": Kill("after_train", priority=Priority.LOWEST),
}


@pytest.mark.parametrize("max_iter", [16, 18], ids=["period divides it", "period does not"])
def test_a_kill_after_the_last_step_cannot_be_seen(experiment, max_iter):
    runs = experiment("digits", "SOLVER.MAX_ITER", max_iter, "SOLVER.AMP.ENABLED=False")
    runs.assert_kills_cannot_be_seen(**AT_THE_END)


@pytest.mark.parametrize("period", [3, 4], ids=["period meets it", "period does not"])
def test_a_run_that_stops_early_stops_there_again(experiment, period):
    settings = ("EARLY_STOPPING.PATIENCE=2", "EARLY_STOPPING.MIN_DELTA=1000")  # no gain counts
    runs = experiment(
        "digits", *settings, "SOLVER.CHECKPOINT_PERIOD", period, "SOLVER.AMP.ENABLED=False"
    )
    reference = runs.assert_kills_cannot_be_seen(before=Kill("before_step", 7), **AT_THE_END)
    assert reference.iter == 9


def test_old_checkpoints_that_a_killed_run_had_yet_to_delete_go_with_the_last_save(experiment):
    settings = ("SOLVER.MAX_ITER=16", "SOLVER.AMP.ENABLED=False")
    runs = experiment("digits", *settings, "CHECKPOINT.KEEP_LAST=0")
    runs.run(killed=Kill("after_train", priority=Priority.HIGHEST))
    runs.resume("killed", ("CHECKPOINT.KEEP_LAST", 2))
    names = {path.stem for path in (runs.folder / "killed").glob("*.pth")}
    assert names == {"model_0000011", "model_0000015", "model_best", "model_final"}


def test_a_kill_at_the_end_does_not_lose_the_results_of_the_test(experiment):
    runs = experiment("digits", "DATASETS.VAL=[small_digits_train]", "SOLVER.AMP.ENABLED=False")
    runs.assert_kills_cannot_be_seen(**AT_THE_END)
    assert "small_digits_test" in (runs.reference / "results.json").read_text()
