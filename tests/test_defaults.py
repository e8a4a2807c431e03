"""Each piece of DefaultTrainer, overridden alone, takes effect; and so do hooks of the config."""

import gc
import weakref

import pytest
import torch
from torch import nn

from engine import HookBase, SimpleTrainer, TrainerBase, hooks
from engine.checkpoint import Checkpointer
from engine.config import ConfigError
from engine.data import build_test_loader, get_dataset
from engine.defaults import HOOK_REGISTRY, DefaultTrainer
from engine.evaluation import DatasetEvaluator
from engine.events import EventWriter
from small_trainers import Pair

pytestmark = pytest.mark.usefixtures("log")


def names(trainer: DefaultTrainer) -> list[str]:
    return [type(hook).__name__ for hook in trainer._hooks]


class CountSamples(DatasetEvaluator):
    def reset(self) -> None:
        self.count = 0

    def process(self, inputs, outputs) -> None:
        self.count += len(inputs["label"])

    def evaluate(self) -> dict:
        return {"seen": {"samples": self.count}}


# --- overriding ---------------------------------------------------------------------------------


def test_build_model_can_be_overridden(digits_cfg):
    class Tiny(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, batch):
            logits = self.linear(batch["image"].flatten(1))
            if not self.training:
                return logits
            return nn.functional.cross_entropy(logits, batch["label"])

    class Trainer(DefaultTrainer):
        @classmethod
        def build_model(cls, cfg):
            return Tiny()

    trainer = Trainer(digits_cfg("MODEL.META_ARCHITECTURE", "no such thing"))
    results = trainer.train()
    assert isinstance(trainer.model, Tiny)
    assert results["classification"]["accuracy"] > 30  # a guess has 10


def test_build_optimizer_can_be_overridden(digits_cfg):
    class Trainer(DefaultTrainer):
        @classmethod
        def build_optimizer(cls, cfg, model):
            return torch.optim.Adam(model.parameters(), lr=cfg.SOLVER.BASE_LR)

    assert type(Trainer(digits_cfg()).optimizer) is torch.optim.Adam


def test_an_optimizer_of_ones_own_need_not_be_one_of_torch(digits_cfg):
    class Trainer(DefaultTrainer):
        @classmethod
        def build_optimizer(cls, cfg, model):
            return Pair(model)

        @classmethod
        def build_lr_scheduler(cls, cfg, optimizer):
            return torch.optim.lr_scheduler.StepLR(optimizer.both[0], 100)

    Trainer(digits_cfg()).train()
    resumed = Trainer(digits_cfg())
    resumed.resume_or_load(resume=True)
    assert resumed.start_iter == resumed.max_iter
    assert all(one.state for one in resumed.optimizer.both)


def test_build_lr_scheduler_can_be_overridden_and_gets_lengths_in_iterations(digits_cfg):
    seen = []

    class Trainer(DefaultTrainer):
        @classmethod
        def build_lr_scheduler(cls, cfg, optimizer):
            seen.append(cfg.SOLVER.MAX_ITER)
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)

    trainer = Trainer(digits_cfg("SOLVER.IMS_PER_BATCH", 143, "SOLVER.MAX_ITER", "2 epoch"))
    trainer.train()
    assert seen == [20]
    assert trainer.storage.history("lr").latest() == pytest.approx(0.05)


def test_build_train_loader_can_be_overridden_by_any_iterable(digits_cfg):
    class Trainer(DefaultTrainer):
        @classmethod
        def build_train_loader(cls, cfg):
            images = torch.zeros(3, 1, 8, 8)
            return [{"image": images, "label": torch.tensor([7, 7, 7])}] * 5

    trainer = Trainer(digits_cfg("SOLVER.BASE_LR", 1.0))
    results = trainer.train()
    assert trainer.epoch_length == 5
    assert results["classification"]["loss"] > 3  # it answers 7, whatever the picture


def test_build_test_loader_can_be_overridden_also_with_names_of_its_own(digits_cfg):
    class Trainer(DefaultTrainer):
        @classmethod
        def build_test_loader(cls, cfg, dataset_name):
            assert dataset_name == "ten samples"
            samples = get_dataset("digits_test")
            return build_test_loader([samples[index] for index in range(10)], batch_size=4)

        @classmethod
        def build_evaluator(cls, cfg, dataset_name):
            return CountSamples()

    results = Trainer(digits_cfg("DATASETS.TEST", "['ten samples']")).train()
    assert results == {"seen": {"samples": 10}}


def test_build_evaluator_can_be_overridden(digits_cfg):
    class Trainer(DefaultTrainer):
        @classmethod
        def build_evaluator(cls, cfg, dataset_name):
            return CountSamples()

    trainer = Trainer(digits_cfg())
    assert trainer.train() == {"seen": {"samples": 360}}
    assert trainer.storage.history("seen/samples").latest() == 360


def test_the_test_can_be_overridden(digits_cfg):
    class Trainer(DefaultTrainer):
        @classmethod
        def test(cls, cfg, model, evaluators=None):
            return {"own": {"score": 0.25}}

    trainer = Trainer(digits_cfg("TEST.EVAL_PERIOD", 10))
    assert trainer.train() == {"own": {"score": 0.25}}
    assert trainer.storage.count_samples("own/score") == 2


def test_build_hooks_can_be_extended(digits_cfg):
    seen = []

    class Trainer(DefaultTrainer):
        def build_hooks(self):
            look = hooks.CallbackHook(after_step=lambda trainer: seen.append(trainer.iter))
            return [*super().build_hooks(), look]

    Trainer(digits_cfg()).train()
    assert seen == list(range(20))


def test_build_writers_can_be_overridden(digits_cfg, tmp_path):
    written = []

    class Keep(EventWriter):
        def write(self):
            written.append(1)

    class Trainer(DefaultTrainer):
        def build_writers(self):
            return [Keep()]

    Trainer(digits_cfg()).train()
    assert len(written) >= 20
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_auto_scale_workers_can_be_overridden(digits_cfg):
    class Trainer(DefaultTrainer):
        @staticmethod
        def auto_scale_workers(cfg, num_workers):
            assert num_workers == 1
            cfg = cfg.clone()
            cfg.defrost()
            cfg.SOLVER.MAX_ITER = 3
            return cfg

    trainer = Trainer(digits_cfg())
    trainer.train()
    assert trainer.iter == 3


def test_load_weights_can_be_overridden(digits_cfg):
    class Trainer(DefaultTrainer):
        @classmethod
        def load_weights(cls, cfg, model, resume=False):
            for parameter in model.parameters():
                nn.init.zeros_(parameter)

    cfg = digits_cfg()
    model = Trainer.build_model(cfg)
    Trainer.load_weights(cfg, model)
    assert Trainer.test(cfg, model)["classification"]["loss"] == pytest.approx(2.302585, abs=1e-5)


def test_given_evaluators_take_the_place_of_the_built_ones(digits_cfg):
    cfg = digits_cfg()
    model = DefaultTrainer.build_model(cfg)
    assert DefaultTrainer.test(cfg, model, CountSamples()) == {"seen": {"samples": 360}}
    assert DefaultTrainer.test(cfg, model, [CountSamples()]) == {"seen": {"samples": 360}}
    with pytest.raises(ValueError, match=r"2 evaluators for 1 test sets: \['digits_test'\]"):
        DefaultTrainer.test(cfg, model, [CountSamples(), CountSamples()])


def test_model_optimizer_and_loader_are_those_of_the_inner_trainer(digits_cfg):
    trainer = DefaultTrainer(digits_cfg())
    trainer.model, trainer.optimizer, trainer.data_loader = nn.Linear(1, 1), "optimizer", [1, 2]
    inner = trainer._trainer
    assert (inner.model, inner.optimizer) == (trainer.model, "optimizer")
    assert inner.data_loader == trainer.data_loader == [1, 2]
    trainer.reset_data_loader(lambda: [3])
    assert inner.data_loader == [3]


def test_the_last_of_the_default_hooks_writes_as_in_detectron2(digits_cfg):
    class Trainer(DefaultTrainer):
        def build_hooks(self):
            hook_list = super().build_hooks()
            assert isinstance(hook_list[-1], hooks.PeriodicWriter)
            hook_list[-1] = hooks.PeriodicWriter(self.build_writers(), period=5)
            return hook_list

    assert names(Trainer(digits_cfg())).count("PeriodicWriter") == 1


def test_a_constructor_may_be_written_out(digits_cfg, tmp_path):
    class Trainer(DefaultTrainer):
        def __init__(self, cfg) -> None:
            TrainerBase.__init__(self)
            model = self.build_model(cfg)
            optimizer = self.build_optimizer(cfg, model)
            self._trainer = SimpleTrainer(model, self.build_train_loader(cfg), optimizer)
            self.scheduler = self.build_lr_scheduler(cfg, optimizer)
            self.checkpointer = Checkpointer(model, cfg.OUTPUT_DIR, trainer=weakref.proxy(self))
            self.max_iter = cfg.SOLVER.MAX_ITER
            self.cfg = cfg
            self.register_hooks(self.build_hooks())

    trainer = Trainer(digits_cfg())
    trainer.resume_or_load(resume=False)
    assert "accuracy" in trainer.train()["classification"]
    assert (tmp_path / "run" / "model_final.pth").exists()
    no_evaluation = Trainer(digits_cfg("DEFAULT_HOOKS.EvalHook.ENABLED", False))
    assert no_evaluation.train() == {}


def test_a_trainer_is_freed_with_its_last_use(digits_cfg):
    trainer = DefaultTrainer(digits_cfg("EMA.ENABLED", True))
    trainer.train()
    reference = weakref.ref(trainer)
    gc.collect()  # what torch's own imports left
    gc.disable()  # the memory of a GPU must not wait for it
    try:
        del trainer
        assert reference() is None
    finally:
        gc.enable()


# --- hooks --------------------------------------------------------------------------------------


def test_after_backward_of_a_hook_is_called_once_a_step(digits_cfg):
    class SeeGradients(HookBase):
        steps = 0

        def after_backward(self):
            assert all(p.grad is not None for p in self.trainer.model.parameters())
            self.steps += 1

    hook = SeeGradients()
    trainer = DefaultTrainer(digits_cfg())
    trainer.register_hooks([hook])
    trainer.train()
    assert hook.steps == 20


def test_after_backward_is_called_once_a_step_when_batches_are_accumulated(digits_cfg):
    calls = []
    trainer = DefaultTrainer(digits_cfg("SOLVER.ACCUMULATE", 3, "SOLVER.MAX_ITER", 4))
    trainer.register_hooks([hooks.CallbackHook(after_backward=lambda t: calls.append(t.iter))])
    trainer.train()
    assert calls == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "name", ["IterationTimer", "LRScheduler", "EvalHook", "PeriodicWriter", "PeriodicCheckpointer"]
)
def test_each_default_hook_can_be_switched_off_alone(digits_cfg, name):
    everything = names(DefaultTrainer(digits_cfg()))
    trainer = DefaultTrainer(digits_cfg(f"DEFAULT_HOOKS.{name}.ENABLED", False))
    assert name in everything
    assert names(trainer) == [hook for hook in everything if hook != name]
    trainer.train()
    assert trainer.iter == 20


def test_a_run_with_no_hooks_leaves_no_files(digits_cfg, tmp_path):
    off = [f"DEFAULT_HOOKS.{name}.ENABLED=False" for name in digits_cfg().DEFAULT_HOOKS]
    trainer = DefaultTrainer(digits_cfg(*off))
    assert trainer.train() == {}
    assert trainer.iter == 20
    assert not (tmp_path / "run").exists()


def test_hooks_of_the_config_have_their_arguments_and_priority(digits_cfg):
    entry = "[{NAME: EarlyStopping, METRIC: +a, PATIENCE: 3, PRIORITY: VERY_LOW}]"
    built = DefaultTrainer(digits_cfg("HOOKS", entry))._hooks
    [hook] = [hook for hook in built if isinstance(hook, hooks.EarlyStopping)]
    assert (hook.priority, hook.patience) == (hooks.Priority.VERY_LOW, 3)


def test_a_hook_of_the_config_may_be_registered_or_named_by_its_path(digits_cfg):
    class RegisteredInATest(HookBase):
        pass

    HOOK_REGISTRY.register(RegisteredInATest)
    try:
        entries = "[{NAME: RegisteredInATest}, {NAME: 'engine.hooks:EMAHook', DECAY: 0.5}]"
        built = names(DefaultTrainer(digits_cfg("HOOKS", entries)))
    finally:
        HOOK_REGISTRY._obj_map.pop("RegisteredInATest")
    assert {"RegisteredInATest", "EMAHook"} < set(built)


def test_an_unknown_hook_name_is_answered_with_the_nearest(digits_cfg):
    with pytest.raises(KeyError, match=r"no 'EMAHok' in the HOOK registry.*did you mean EMAHook"):
        DefaultTrainer(digits_cfg("HOOKS", "[{NAME: EMAHok}]"))


@pytest.mark.parametrize("entry", ["[EMAHook]", "[{START: 5}]"])
def test_an_entry_of_hooks_without_a_name_is_refused(digits_cfg, entry):
    with pytest.raises(ConfigError, match="an entry of HOOKS is"):
        DefaultTrainer(digits_cfg("HOOKS", entry))
