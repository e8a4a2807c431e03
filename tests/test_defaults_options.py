"""What the config of a DefaultTrainer switches on."""

import pytest
import torch
from torch import nn

from engine import AMPTrainer, hooks
from engine.config import ConfigError
from engine.data import get_dataset
from engine.defaults import DefaultTrainer

pytestmark = pytest.mark.usefixtures("log")


def test_amp_runs_in_bfloat16(digits_cfg):
    trainer = DefaultTrainer(
        digits_cfg("SOLVER.AMP.ENABLED", True, "SOLVER.AMP.PRECISION", "bfloat16")
    )
    trainer.train()
    assert isinstance(trainer._trainer, AMPTrainer)
    assert trainer._trainer.precision is torch.bfloat16
    assert all(p.dtype is torch.float32 for p in trainer.model.parameters())


def test_the_loss_scale_of_float16_is_set_and_logged(digits_cfg):
    options = ("ENABLED", True, "LOG_SCALE", True, "LOSS_SCALE.INIT", 4.0)
    pairs = zip(options[::2], options[1::2], strict=True)
    trainer = DefaultTrainer(digits_cfg(*(x for k, v in pairs for x in (f"SOLVER.AMP.{k}", v))))
    trainer.train()
    assert trainer.storage.latest()["[metric]grad_scaler"][0] == 4.0


def test_an_unknown_precision_is_refused(digits_cfg):
    with pytest.raises(ConfigError, match=r"PRECISION is 'bf16'.*one of 'float16', 'bfloat16'"):
        DefaultTrainer(digits_cfg("SOLVER.AMP.ENABLED", True, "SOLVER.AMP.PRECISION", "bf16"))


def test_accumulated_batches_train_like_one_large_batch(digits_cfg):
    large = DefaultTrainer(digits_cfg("SOLVER.IMS_PER_BATCH", 32, "SEED", 1))
    small = DefaultTrainer(digits_cfg("SOLVER.IMS_PER_BATCH", 8, "SOLVER.ACCUMULATE", 4, "SEED", 1))
    small.model.load_state_dict(large.model.state_dict())
    for trainer in (large, small):
        trainer.train()
    assert large.epoch_length * 4 - small.epoch_length * 4 < 1  # of 1,437 samples both
    for name, value in large.model.state_dict().items():
        torch.testing.assert_close(small.model.state_dict()[name], value)


def test_gradients_are_clipped_and_their_norm_is_logged(digits_cfg):
    norms = []

    def note(trainer):
        grads = [p.grad for p in trainer.model.parameters()]
        norms.append(torch.nn.utils.get_total_norm(grads).item())

    options = "ENABLED=True", "CLIP_TYPE=norm", "CLIP_VALUE=0.01"
    trainer = DefaultTrainer(digits_cfg(*(f"SOLVER.CLIP_GRADIENTS.{o}" for o in options)))
    trainer.register_hooks([hooks.CallbackHook(after_step=note)])
    trainer.train()
    assert max(norms) == pytest.approx(0.01, rel=1e-3)
    assert trainer.storage.history("grad_norm").latest() > 0.01  # as it was before


def test_early_stopping_ends_the_run(digits_cfg):
    trainer = DefaultTrainer(
        digits_cfg(
            "EARLY_STOPPING.METRIC=+classification/accuracy",
            "EARLY_STOPPING.PATIENCE=2",
            "EARLY_STOPPING.MIN_DELTA=100.0",
            "TEST.EVAL_PERIOD=2",
        )
    )
    trainer.train()
    assert trainer.iter == 6  # the first evaluation sets the mark, two more do not pass it
    assert "has not improved for 2 evaluations" in trainer.stop_reasons[0]


def test_the_best_checkpoint_is_kept_apart(digits_cfg, tmp_path):
    trainer = DefaultTrainer(
        digits_cfg("CHECKPOINT.BEST_METRIC", "-classification/loss", "TEST.EVAL_PERIOD", 5)
    )
    trainer.train()
    best = torch.load(tmp_path / "run" / "model_best.pth", weights_only=True)
    assert best["model"].keys() == trainer.model.state_dict().keys()
    assert (tmp_path / "run" / "last_checkpoint").read_text() == "model_final.pth"


def test_only_the_last_checkpoints_are_kept(digits_cfg, tmp_path):
    DefaultTrainer(digits_cfg("CHECKPOINT.KEEP_LAST", 2, "SOLVER.CHECKPOINT_PERIOD", 4)).train()
    kept = sorted(path.name for path in (tmp_path / "run").glob("*.pth"))
    assert kept == ["model_0000015.pth", "model_0000019.pth", "model_final.pth"]


def test_precise_bn_gives_exact_statistics_to_the_evaluation(digits_cfg):
    class Normalized(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(1)
            self.linear = nn.Linear(64, 10)

        def forward(self, batch):
            logits = self.linear(self.norm(batch["image"]).flatten(1))
            return nn.functional.cross_entropy(logits, batch["label"]) if self.training else logits

    class Trainer(DefaultTrainer):
        @classmethod
        def build_model(cls, cfg):
            return Normalized()

    trainer = Trainer(
        digits_cfg(
            "TEST.PRECISE_BN.ENABLED=True",
            "TEST.PRECISE_BN.NUM_ITER=3",
            "SOLVER.IMS_PER_BATCH=479",  # three times that is the whole data set
            "SOLVER.MAX_ITER=2",
        )
    )
    trainer.train()
    images = torch.stack([sample["image"] for sample in get_dataset("digits_train")])
    torch.testing.assert_close(trainer.model.norm.running_mean, images.mean().reshape(1))


def test_the_size_of_the_model_is_logged_on_request_and_changes_nothing(digits_cfg, log):
    def train(*options):
        torch.manual_seed(0)
        trainer = DefaultTrainer(digits_cfg(*options))
        trainer.train()
        return trainer.model.state_dict()

    plain = train()
    assert "FLOPs" not in log.text
    analysed = train("ANALYSIS.ENABLED", True)
    assert "parameters 1.48 K | FLOPs" in log.text
    assert all(torch.equal(analysed[name], value) for name, value in plain.items())


def test_a_config_for_more_processes_is_scaled_to_those_there_are(digits_cfg):
    scaled = DefaultTrainer(digits_cfg("SOLVER.REFERENCE_WORLD_SIZE=2", "SOLVER.IMS_PER_BATCH=32"))
    assert (scaled.max_iter, scaled.data_loader.total_batch_size) == (40, 16)
    assert scaled.optimizer.param_groups[0]["initial_lr"] == pytest.approx(0.05)


def test_epochs_are_accepted_as_lengths_everywhere(digits_cfg, tmp_path):
    trainer = DefaultTrainer(
        digits_cfg(
            "SOLVER.IMS_PER_BATCH=200",  # 7 iterations an epoch
            "SOLVER.MAX_ITER=3 epoch",
            "SOLVER.STEPS=['2 epoch']",
            "SOLVER.WARMUP_ITERS=1 epoch",
            "SOLVER.CHECKPOINT_PERIOD=1 epoch",
            "TEST.EVAL_PERIOD=2 epoch",
            "EMA.ENABLED=True",
            "EMA.START=1 epoch",
            "LOG_PERIOD=1 epoch",
        )
    )
    trainer.train()
    assert (trainer.epoch_length, trainer.iter) == (7, 21)
    solver = trainer.cfg.SOLVER
    assert (solver.MAX_ITER, solver.STEPS, solver.WARMUP_ITERS) == (21, (14,), 7)
    saved = sorted(path.name for path in (tmp_path / "run").glob("*0*.pth"))
    assert saved == ["model_0000006.pth", "model_0000013.pth", "model_0000020.pth"]
    assert trainer.storage.count_samples("classification/loss") == 2


def test_lists_of_hooks_and_writers_may_be_null(digits_cfg):
    DefaultTrainer(digits_cfg("HOOKS", None, "WRITERS", None)).train()
