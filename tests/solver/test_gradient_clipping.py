import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from engine import SimpleTrainer
from engine.solver import build_optimizer
from engine.solver.gradient_clipping import (
    GradientClipper,
    build_gradient_clipper,
    maybe_add_gradient_clipping,
)

finite = st.floats(-1e3, 1e3, width=32)


def optimizer_with(*groups: list[list[float]]) -> torch.optim.SGD:
    """An optimizer whose gradients are given, one list a parameter."""
    param_groups = []
    for gradients in groups:
        parameters = []
        for gradient in gradients:
            parameter = nn.Parameter(torch.zeros(len(gradient)))
            parameter.grad = torch.tensor(gradient)
            parameters.append(parameter)
        param_groups.append({"params": parameters})
    return torch.optim.SGD(param_groups, lr=0.1)


def gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p.grad for group in optimizer.param_groups for p in group["params"]]


def test_the_norm_of_the_whole_model_is_clipped_and_its_old_value_returned():
    optimizer = optimizer_with([[3.0, 0.0]], [[0.0, 4.0]])
    norm = GradientClipper(1.0)(optimizer)
    assert norm.item() == 5.0
    torch.testing.assert_close(torch.cat(gradients(optimizer)), torch.tensor([0.6, 0, 0, 0.8]))


def test_scope_group_clips_each_group_by_itself():
    optimizer = optimizer_with([[3.0], [4.0]], [[0.5]])
    norm = GradientClipper(1.0, scope="group")(optimizer)
    assert norm.item() == pytest.approx(math.sqrt(25.25))
    torch.testing.assert_close(torch.cat(gradients(optimizer)), torch.tensor([0.6, 0.8, 0.5]))


def test_scope_parameter_clips_each_parameter_by_itself():
    optimizer = optimizer_with([[3.0], [4.0]], [[0.5]])
    norm = GradientClipper(1.0, scope="parameter")(optimizer)
    assert norm.item() == pytest.approx(math.sqrt(25.25))
    torch.testing.assert_close(torch.cat(gradients(optimizer)), torch.tensor([1.0, 1.0, 0.5]))


def test_by_value_cuts_every_element():
    optimizer = optimizer_with([[3.0, -0.5], [-4.0]])
    norm = GradientClipper(1.0, by="value")(optimizer)
    assert norm.item() == pytest.approx(math.sqrt(25.25))
    assert torch.cat(gradients(optimizer)).tolist() == [1.0, -0.5, -1.0]


def test_an_infinite_element_is_cut_by_value_too():
    optimizer = optimizer_with([[math.inf, 0.5]])
    assert GradientClipper(1.0, by="value")(optimizer).item() == math.inf
    assert torch.cat(gradients(optimizer)).tolist() == [1.0, 0.5]


def test_the_infinity_norm_is_the_largest_element():
    optimizer = optimizer_with([[3.0, -4.0]], [[1.0]])
    assert GradientClipper(2.0, norm_type=math.inf)(optimizer).item() == 4.0
    torch.testing.assert_close(torch.cat(gradients(optimizer)), torch.tensor([1.5, -2.0, 0.5]))


@given(
    values=st.lists(st.lists(st.lists(finite, min_size=1), min_size=1), min_size=1, max_size=3),
    norm_type=st.sampled_from([1.0, 2.0, 3.0, math.inf]),
    scope=st.sampled_from(["model", "group", "parameter"]),
)
def test_the_returned_norm_is_that_of_all_gradients_before_clipping(values, norm_type, scope):
    optimizer = optimizer_with(*values)
    everything = torch.cat(gradients(optimizer)).double()
    expected = torch.linalg.vector_norm(everything, norm_type).item()
    norm = GradientClipper(1.0, scope=scope, norm_type=norm_type)(optimizer)
    assert norm.item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@given(values=st.lists(finite, min_size=1), scope=st.sampled_from(["model", "group", "parameter"]))
def test_gradients_never_grow(values, scope):
    optimizer = optimizer_with([values])
    GradientClipper(10.0, scope=scope)(optimizer)
    (clipped,) = gradients(optimizer)
    assert torch.linalg.vector_norm(clipped) <= 10.001
    assert (clipped.abs() <= torch.tensor(values).abs()).all()


def test_parameters_without_a_gradient_are_left_out():
    optimizer = optimizer_with([[3.0], [4.0]], [[7.0]])
    optimizer.param_groups[1]["params"][0].grad = None
    assert GradientClipper(1.0, scope="group")(optimizer).item() == 5.0


@pytest.mark.parametrize("by", ["norm", "value"])
def test_no_gradients_at_all_have_norm_zero(by):
    optimizer = optimizer_with([[3.0]])
    optimizer.zero_grad(set_to_none=True)
    assert GradientClipper(1.0, by=by)(optimizer).item() == 0.0


def test_clipping_reads_no_value_back_from_the_device():
    # A meta tensor has no values: anything that asks for one raises.
    parameter = nn.Parameter(torch.zeros(3, device="meta"))
    parameter.grad = torch.ones(3, device="meta")
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for by in ("norm", "value"):
        for scope in ("model", "group", "parameter"):
            assert GradientClipper(1.0, by=by, scope=scope)(optimizer).is_meta


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"maximum": 0.0}, "maximum must be above 0, got 0.0"),
        ({"maximum": -1.0}, "maximum must be above 0, got -1.0"),
        ({"maximum": math.nan}, "maximum must be above 0, got nan"),
        ({"maximum": 1.0, "norm_type": 0.0}, "norm_type must be above 0"),
        ({"maximum": 1.0, "scope": "layer"}, "scope is 'layer', not one of"),
        ({"maximum": 1.0, "by": "full_model"}, "by is 'full_model', not one of"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        GradientClipper(**arguments)


def test_clipping_is_off_unless_the_config_says_so(cfg):
    assert build_gradient_clipper(cfg) is None


@pytest.mark.parametrize(
    ("clip_type", "scope", "expected"),
    [
        ("value", "model", GradientClipper(0.5, "value", "model")),
        ("norm", "model", GradientClipper(0.5, "norm", "model")),
        ("norm", "parameter", GradientClipper(0.5, "norm", "parameter")),
        ("full_model", "parameter", GradientClipper(0.5, "norm", "model")),
    ],
)
def test_the_config_says_how_to_clip(cfg, clip_type, scope, expected):
    cfg.SOLVER.CLIP_GRADIENTS.merge_from_list(
        ["ENABLED", True, "CLIP_TYPE", clip_type, "CLIP_VALUE", 0.5, "SCOPE", scope]
    )
    assert build_gradient_clipper(cfg) == expected


def test_an_unknown_clip_type_is_refused(cfg):
    cfg.SOLVER.CLIP_GRADIENTS.merge_from_list(["ENABLED", True, "CLIP_TYPE", "norms"])
    with pytest.raises(ValueError, match=r"SOLVER.CLIP_GRADIENTS: .*'norms'"):
        build_gradient_clipper(cfg)


def test_an_empty_parameter_takes_no_part():
    optimizer = optimizer_with([[3.0], []])
    assert GradientClipper(1.0, norm_type=math.inf)(optimizer).item() == 3.0


@pytest.fixture
def clipped_to_1(cfg):
    cfg.SOLVER.merge_from_list(["BASE_LR", 1.0, "MOMENTUM", 0.0, "WEIGHT_DECAY", 0.0])
    cfg.SOLVER.CLIP_GRADIENTS.merge_from_list(["ENABLED", True, "CLIP_TYPE", "full_model"])
    return cfg


def step_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> float:
    """How far a step goes on a gradient of length 5."""
    before = parameter.detach().clone()
    parameter.grad = torch.tensor([[3.0, 4.0]])
    optimizer.step()
    return (parameter - before).norm().item()


def test_in_a_loop_of_ones_own_the_optimizer_clips(clipped_to_1):
    model = nn.Linear(2, 1, bias=False)
    optimizer = build_optimizer(clipped_to_1, model)
    assert step_of(optimizer, model.weight) == pytest.approx(1.0)
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    assert step_of(plain, model.weight) == pytest.approx(5.0)
    assert step_of(maybe_add_gradient_clipping(clipped_to_1, plain), model.weight) == (
        pytest.approx(1.0)
    )


def test_a_class_of_optimizers_is_made_one_that_clips(clipped_to_1):
    model = nn.Linear(2, 1, bias=False)
    optimizer_class = maybe_add_gradient_clipping(clipped_to_1, torch.optim.SGD)
    assert issubclass(optimizer_class, torch.optim.SGD)
    optimizer = optimizer_class(model.parameters(), lr=1.0)
    assert step_of(optimizer, model.weight) == pytest.approx(1.0)


class Straight(nn.Linear):
    """Has a gradient of (30, 40)."""

    def forward(self, batch):
        return super().forward(batch).sum() * 10


@pytest.mark.parametrize("own", [None, GradientClipper(2.0)])
def test_a_trainer_that_clips_takes_the_place_of_the_optimizer(clipped_to_1, own):
    model = Straight(2, 1, bias=False)
    before = model.weight.detach().clone()
    optimizer = build_optimizer(clipped_to_1, model)
    trainer = SimpleTrainer(model, [torch.tensor([[3.0, 4.0]])], optimizer)
    trainer.clip_gradients = own
    trainer.train(0, 1)
    assert (model.weight - before).norm().item() == pytest.approx(2.0 if own else 1.0)


@pytest.mark.parametrize("fused", [False, True])
def test_what_a_grad_scaler_has_scaled_is_clipped_in_its_true_size(clipped_to_1, fused):
    model = Straight(2, 1, bias=False)
    before = model.weight.detach().clone()
    clipped_to_1.SOLVER.OPTIMIZER.fused = fused
    optimizer = build_optimizer(clipped_to_1, model)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(model(torch.tensor([[3.0, 4.0]]))).backward()
        scaler.step(optimizer)
        scaler.update()
    assert (model.weight - before).norm().item() == pytest.approx(2.0)
