import pytest
import torch
from fvcore.common.param_scheduler import ConstantParamScheduler
from torch import nn

from engine.config import ConfigError
from engine.solver.lr_scheduler import LRMultiplier
from engine.solver.optimizer import (
    OPTIMIZER_REGISTRY,
    build_optimizer,
    get_optimizer_class,
    load_optimizer_state,
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def lrs(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    lr_of = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    return {name: lr_of[p] for name, p in model.named_parameters() if p in lr_of}


def test_by_default_it_is_sgd_without_decay_on_norms(cfg):
    optimizer = build_optimizer(cfg, Net())
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.defaults["momentum"] == 0.9
    decays = {len(group["params"]): group["weight_decay"] for group in optimizer.param_groups}
    assert decays == {6: 0.01, 2: 0.0}


def test_any_optimizer_of_torch_by_name_with_its_arguments(cfg):
    cfg.SOLVER.OPTIMIZER.merge_from_list(["NAME", "AdamW"])
    cfg.SOLVER.OPTIMIZER.betas = [0.8, 0.95]
    cfg.SOLVER.OPTIMIZER.amsgrad = True
    optimizer = build_optimizer(cfg, Net())
    assert isinstance(optimizer, torch.optim.AdamW)
    assert all(group["betas"] == (0.8, 0.95) for group in optimizer.param_groups)
    assert all(group["amsgrad"] and group["lr"] == 0.1 for group in optimizer.param_groups)


@pytest.mark.parametrize(
    "name", ["Adadelta", "Adagrad", "Adam", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"]
)
def test_every_optimizer_lowers_the_loss(cfg, name):
    torch.manual_seed(0)
    cfg.SOLVER.OPTIMIZER.NAME = name
    cfg.SOLVER.BASE_LR = 0.01
    model, x = Net(), torch.randn(16, 4)
    optimizer = build_optimizer(cfg, model)
    losses = []
    for _ in range(5):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_an_optimizer_without_weight_decay_says_so_and_needs_one_group_only(cfg, caplog):
    cfg.SOLVER.OPTIMIZER.NAME = "LBFGS"
    optimizer = build_optimizer(cfg, Net())
    assert len(optimizer.param_groups) == 1
    assert "LBFGS has no weight decay" in caplog.text


def test_text_in_the_place_of_the_section_is_its_name(cfg):
    cfg.SOLVER.OPTIMIZER = "AdamW"
    assert isinstance(build_optimizer(cfg, Net()), torch.optim.AdamW)


def test_rules_set_multipliers_options_and_freeze(cfg):
    cfg.SOLVER.PARAM_RULES = [
        {"MATCH": "backbone", "LR_MULT": 0.5},
        {"MATCH": "backbone.0", "FREEZE": True},
        {"MATCH": "head", "LR_MULT": 10.0, "momentum": 0.5},
    ]
    model = Net()
    optimizer = build_optimizer(cfg, model)
    assert lrs(model, optimizer) == {
        "backbone.1.weight": 0.05,
        "backbone.1.bias": 0.05,
        "backbone.2.weight": 0.05,
        "backbone.2.bias": 0.05,
        "head.weight": 1.0,
        "head.bias": 1.0,
    }
    assert optimizer.param_groups[-1]["momentum"] == 0.5
    assert not model.backbone[0].weight.requires_grad


def test_a_rule_that_matches_nothing_is_reported(cfg, caplog):
    cfg.SOLVER.PARAM_RULES = [{"MATCH": "backbones", "LR_MULT": 0.5}]
    build_optimizer(cfg, Net())
    assert "rule {MATCH: backbones} matches no parameter; did you mean backbone" in caplog.text


def test_layer_decay_scales_the_lr_and_spares_1d_parameters_of_decay(cfg):
    cfg.SOLVER.LAYER_DECAY.merge_from_list(["ENABLED", True, "PREFIX", "backbone"])
    cfg.SOLVER.PARAM_RULES = [{"MATCH": "head", "LR_MULT": 2.0}]
    model = Net()
    optimizer = build_optimizer(cfg, model)
    assert lrs(model, optimizer) == {
        "backbone.0.weight": 0.0125,
        "backbone.0.bias": 0.0125,
        "backbone.1.weight": 0.025,
        "backbone.1.bias": 0.025,
        "backbone.2.weight": 0.05,
        "backbone.2.bias": 0.05,
        "head.weight": 0.2,
        "head.bias": 0.2,
    }
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.01 if parameter.ndim > 1 else 0.0)


def test_layer_decay_can_leave_1d_parameters_their_decay(cfg):
    cfg.SOLVER.LAYER_DECAY.merge_from_list(
        ["ENABLED", True, "PREFIX", "backbone", "NO_DECAY_1D", False]
    )
    cfg.SOLVER.WEIGHT_DECAY_NORM = None
    assert all(g["weight_decay"] == 0.01 for g in build_optimizer(cfg, Net()).param_groups)


def test_unknown_names_and_arguments_name_the_nearest(cfg):
    answer = r"SOLVER.OPTIMIZER.NAME: .*no optimizer 'ADAMW'; did you mean AdamW.*known: "
    with pytest.raises(ConfigError, match=answer):
        get_optimizer_class("ADAMW")
    cfg.SOLVER.OPTIMIZER.beta = [0.8, 0.95]
    with pytest.raises(ValueError, match=r"OPTIMIZER: SGD has no argument 'beta'.*momentum"):
        build_optimizer(cfg, Net())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"NAME": "SGD", "momentum": -1}, "SOLVER.OPTIMIZER: SGD: Invalid momentum value: -1"),
        ({"NAME": "Adam", "betas": [2, 0.9]}, "SOLVER.OPTIMIZER: Adam: Invalid beta parameter"),
    ],
)
def test_values_that_an_optimizer_refuses_name_the_section(cfg, options, message):
    cfg.SOLVER.OPTIMIZER.update(options)
    with pytest.raises(ConfigError, match=message):
        build_optimizer(cfg, Net())


class Lazy(torch.optim.SGD):
    """An optimizer of a user's own."""


def test_an_optimizer_of_ones_own_is_named_by_its_path_or_in_the_registry(cfg):
    cfg.SOLVER.OPTIMIZER.NAME = f"{__name__}:Lazy"
    assert type(build_optimizer(cfg, Net())) is Lazy
    with pytest.raises(ImportError, match=r"SOLVER.OPTIMIZER.NAME: .*no 'Lasy'; did you mean Lazy"):
        get_optimizer_class(f"{__name__}:Lasy")
    with pytest.raises(ValueError, match=r"SOLVER.OPTIMIZER.NAME: .*:Net is no class of torch's"):
        get_optimizer_class(f"{__name__}:Net")
    OPTIMIZER_REGISTRY.register(Lazy)
    try:
        assert get_optimizer_class("Lazy") is Lazy
    finally:
        OPTIMIZER_REGISTRY._obj_map.pop("Lazy")


def test_an_unknown_option_in_a_rule_is_refused(cfg):
    cfg.SOLVER.PARAM_RULES = [{"MATCH": "head", "momentom": 0.5}]
    with pytest.raises(ValueError, match="SGD has no argument 'momentom'; did you"):
        build_optimizer(cfg, Net())


@pytest.mark.parametrize(("key", "home"), [("lr", "BASE_LR"), ("weight_decay", "WEIGHT_DECAY")])
def test_the_lr_and_the_decay_have_one_place(cfg, key, home):
    cfg.SOLVER.OPTIMIZER[key] = 0.5
    with pytest.raises(ConfigError, match=f"set {key} as SOLVER.{home}"):
        build_optimizer(cfg, Net())


def test_a_model_with_nothing_to_train_is_refused(cfg):
    cfg.SOLVER.PARAM_RULES = [{"MATCH": "", "FREEZE": True}]
    with pytest.raises(ValueError, match="Net has no trainable parameter"):
        build_optimizer(cfg, Net())


@pytest.mark.parametrize(
    ("saved", "other", "reason"),
    [
        (torch.optim.SGD, torch.optim.AdamW, "lacks .*"),
        (torch.optim.AdamW, torch.optim.SGD, "lacks .*momentum"),
        (torch.optim.SGD, torch.optim.RMSprop, "lacks .*"),
    ],
)
def test_the_state_of_another_optimizer_is_refused(saved, other, reason):
    def optimizer(kind: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
        weight = torch.nn.Parameter(torch.ones(2))
        weight.grad = torch.ones(2)
        made = kind([weight], lr=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
        made.step()
        return made

    load_optimizer_state(optimizer(saved), optimizer(saved).state_dict())
    with pytest.raises(
        ValueError, match=rf"does not fit {other.__name__} .*{reason}.* resume with"
    ):
        load_optimizer_state(optimizer(other), optimizer(saved).state_dict())


class Lion(torch.optim.Optimizer):
    """An optimizer of a user's own."""

    def __init__(self, params, lr: float = 0.1, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})


@pytest.mark.parametrize("kind", [Lion, torch.optim.Adafactor])
def test_an_optimizer_that_knows_few_options_takes_its_own_state(kind):
    weight = torch.nn.Parameter(torch.ones(2))
    other = kind([weight], lr=0.3)
    load_optimizer_state(other, kind([weight], lr=0.2).state_dict())
    assert other.param_groups[0]["lr"] == 0.2


def test_an_argument_of_a_base_config_can_be_taken_back(cfg, model):
    cfg.SOLVER.OPTIMIZER.merge_from_list(["NAME", "Rprop"])
    cfg.SOLVER.OPTIMIZER.fused = True
    with pytest.raises(ValueError, match="Rprop has no argument 'fused'"):
        build_optimizer(cfg, model)
    cfg.SOLVER.OPTIMIZER.fused = None
    assert isinstance(build_optimizer(cfg, model), torch.optim.Rprop)


def test_how_to_compute_is_not_part_of_a_saved_state():
    weight = torch.nn.Parameter(torch.ones(2))
    other = torch.optim.SGD([weight], lr=0.3, fused=False)
    load_optimizer_state(other, torch.optim.SGD([weight], lr=0.2, fused=True).state_dict())
    assert (other.param_groups[0]["fused"], other.param_groups[0]["lr"]) == (False, 0.2)


def test_options_that_stay_as_they_were_saved_are_told(log):
    weight = torch.nn.Parameter(torch.ones(2))

    def optimizer(lr: float, **options) -> torch.optim.Optimizer:
        made = torch.optim.AdamW([weight], lr=lr, **options)
        LRMultiplier(made, ConstantParamScheduler(1.0), max_iter=4)
        return made

    state = optimizer(0.2).state_dict()
    load_optimizer_state(optimizer(0.2, foreach=True), state)
    assert log.records == []
    load_optimizer_state(optimizer(0.1, betas=(0.8, 0.9)), state)
    (record,) = log.records
    assert (
        ": betas (0.9, 0.999), not (0.8, 0.9); lr 0.2, not 0.1. For others" in record.getMessage()
    )


def test_a_momentum_that_a_schedule_sets_is_not_told(log):
    weight = torch.nn.Parameter(torch.ones(2))
    half = ConstantParamScheduler(0.5)
    saved, other = (torch.optim.SGD([weight], lr=0.1, momentum=0.9) for _ in range(2))
    LRMultiplier(saved, half, max_iter=4, momentum=half)
    LRMultiplier(other, half, max_iter=4, momentum=ConstantParamScheduler(1.0))
    load_optimizer_state(other, saved.state_dict())
    assert log.records == []


def test_a_state_of_other_groups_is_refused():
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    state = torch.optim.SGD([{"params": [weight]} for weight in weights], lr=0.1).state_dict()
    with pytest.raises(ValueError, match=r"SGD with its 1 groups .*number of parameter groups"):
        load_optimizer_state(torch.optim.SGD(weights, lr=0.1), state)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("size", [2, 4])
def test_a_state_of_parameters_of_another_shape_is_refused(kind, size):
    def optimizer(size: int) -> torch.optim.Optimizer:
        weight = torch.nn.Parameter(torch.ones(size, 3))
        weight.grad = torch.ones(size, 3)
        made = kind([weight], lr=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
        made.step()
        return made

    message = rf"has a \w+ of shape \(3, 3\) for a parameter of shape \({size}, 3\)"
    with pytest.raises(ValueError, match=message):
        load_optimizer_state(optimizer(size), optimizer(3).state_dict())
