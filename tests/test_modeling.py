import pytest
import torch
from torch import nn

from engine import SimpleTrainer
from engine.checkpoint import Checkpointer
from engine.config import ConfigError, configurable
from engine.hooks import EMAHook
from engine.modeling import META_ARCH_REGISTRY, build_model, load_weights

pytestmark = pytest.mark.usefixtures("log")


@pytest.fixture
def registered():
    class ModelOfATest(nn.Linear):
        def __init__(self, hidden):
            super().__init__(hidden, 1)

    META_ARCH_REGISTRY.register(ModelOfATest)
    yield ModelOfATest
    META_ARCH_REGISTRY._obj_map.pop("ModelOfATest")


def test_a_registered_model_is_built_with_its_arguments(digits_cfg, registered):
    model = build_model(digits_cfg("MODEL.META_ARCHITECTURE", "ModelOfATest"))
    assert type(model) is registered
    assert model.in_features == 16


@pytest.mark.parametrize("kind", ["cfg", "configurable", "function"])
def test_a_model_that_wants_the_config_gets_it(digits_cfg, kind):
    class WithCfg(nn.Linear):
        def __init__(self, cfg):
            super().__init__(cfg.SOLVER.MAX_ITER, 1)

    class Configurable(nn.Linear):
        @configurable
        def __init__(self, *, inputs):
            super().__init__(inputs, 1)

        @classmethod
        def from_config(cls, cfg):
            return {"inputs": cfg.SOLVER.MAX_ITER}

    made = {"cfg": WithCfg, "configurable": Configurable, "function": lambda cfg: WithCfg(cfg)}
    META_ARCH_REGISTRY._do_register("ModelOfATest", made[kind])
    cfg = digits_cfg("MODEL.META_ARCHITECTURE", "ModelOfATest").clone()
    cfg.MODEL.ARGS.clear()
    try:
        model = build_model(cfg)
    finally:
        META_ARCH_REGISTRY._obj_map.pop("ModelOfATest")
    assert model.in_features == 20


def test_a_model_may_be_named_by_its_import_path(digits_cfg):
    assert type(build_model(digits_cfg())).__name__ == "DigitsMLP"


def test_the_model_is_put_on_the_device(digits_cfg, monkeypatch):
    monkeypatch.setattr("engine.modeling.choose_device", torch.device)  # takes what tests have
    model = build_model(digits_cfg("MODEL.DEVICE", "meta"))
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


@pytest.mark.parametrize("device", ["meta", None, "hpu"])
def test_a_device_that_cannot_train_is_refused_with_the_key(digits_cfg, device):
    with pytest.raises(ConfigError, match=r"MODEL.DEVICE: .*; use 'auto'"):
        build_model(digits_cfg("MODEL.DEVICE", device))


@pytest.mark.usefixtures("registered")
def test_an_unknown_name_is_answered_with_the_nearest(digits_cfg):
    with pytest.raises(KeyError, match="did you mean ModelOfATest"):
        build_model(digits_cfg("MODEL.META_ARCHITECTURE", "ModelOfTest"))


def test_weights_come_from_the_file_or_from_the_run(digits_cfg, tmp_path):
    def checkpoint(value):
        return {
            name: torch.full_like(t, value) for name, t in build_model(cfg).state_dict().items()
        }

    def first_weight(**how):
        model = build_model(cfg)
        load_weights(cfg, model, **how)
        return next(model.parameters()).flatten()[0].item()

    cfg = digits_cfg("MODEL.WEIGHTS", str(tmp_path / "given.pth"))
    (tmp_path / "run").mkdir()
    torch.save({"model": checkpoint(1.0)}, tmp_path / "given.pth")
    torch.save({"model": checkpoint(2.0)}, tmp_path / "run" / "model_0000009.pth")
    (tmp_path / "run" / "last_checkpoint").write_text("model_0000009.pth")
    assert first_weight() == 1.0
    assert first_weight(resume=True) == 2.0


def test_averaged_weights_are_used_as_in_the_evaluations_of_their_run(digits_cfg, tmp_path, log):
    weights = build_model(digits_cfg()).state_dict()
    average = {name: torch.full_like(tensor, 5.0) for name, tensor in weights.items()}
    others = {"another.weight": torch.zeros(1)}  # of a teacher, for example

    def first_weight(**averages):
        states = {"hooks": {name: {"average": one, "count": 1} for name, one in averages.items()}}
        torch.save({"model": weights, "trainer": states}, tmp_path / "m.pth")
        cfg = digits_cfg("MODEL.WEIGHTS", str(tmp_path / "m.pth"))
        model = build_model(cfg)
        load_weights(cfg, model)
        return next(model.parameters()).flatten()[0].item()

    trained = next(iter(weights.values())).flatten()[0]
    assert first_weight(EMAHook=average) == first_weight(MyEMA=average) == 5.0
    assert first_weight(EMAHook=average, Teacher=others) == 5.0
    assert "averages of the weights" not in log.text
    assert first_weight() == first_weight(Teacher=others) == trained
    assert first_weight(EMAHook=average, Other=average) == trained
    assert "has 2 averages of the weights: none is used" in log.text


class SavesItsHead(nn.Module):
    """Leaves out what it does not train, and a table that it makes itself."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(2, 2).requires_grad_(False)
        self.head = nn.Linear(2, 1)
        self.register_buffer("table", torch.arange(3.0), persistent=False)

    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        return {name: one for name, one in state.items() if name.startswith("head.")}


def test_averaged_weights_are_used_though_not_all_of_them_are_saved(digits_cfg, tmp_path):
    trained = SavesItsHead()
    trainer = SimpleTrainer(trained, [], torch.optim.SGD(trained.head.parameters()))
    ema = EMAHook(buffers=True, model=trained)
    ema.average = dict(trained.named_parameters()) | dict(trained.named_buffers())
    ema.average["head.weight"] = torch.full((1, 2), 5.0)
    trainer.register_hooks([ema])
    Checkpointer(trained, tmp_path, trainer=trainer).save("model")
    evaluated = SavesItsHead()
    load_weights(digits_cfg("MODEL.WEIGHTS", str(tmp_path / "model.pth")), evaluated)
    assert evaluated.head.weight.tolist() == [[5.0, 5.0]]
    assert torch.equal(evaluated.backbone.weight, trained.backbone.weight)


def test_a_missing_file_of_weights_is_named(digits_cfg, tmp_path):
    cfg = digits_cfg("MODEL.WEIGHTS", str(tmp_path / "nowhere.pth"))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_weights(cfg, build_model(cfg))


def test_an_evaluation_without_weights_warns_or_is_refused(digits_cfg, log):
    cfg = digits_cfg()
    load_weights(cfg, build_model(cfg))
    assert "No weights are given (MODEL.WEIGHTS, or --resume)" in log.text
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint in .*/run: name one"):
        load_weights(cfg, build_model(cfg), resume=True)
