import pytest
import torch

from engine.config import ConfigError, get_cfg
from engine.solver import build_grad_scaler


def scales(cfg, losses: list[float]) -> list[float]:
    """The scale after each step with a loss of that slope."""
    scaler = build_grad_scaler(cfg, "cpu")
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    found = []
    for slope in losses:
        optimizer.zero_grad()
        scaler.scale((weight * slope).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append(scaler.get_scale())
    assert weight.isfinite()
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("INIT", 8.0, "GROWTH_INTERVAL", 2), [8.0, 16.0, 8.0, 8.0]),
        (("INIT", 8.0, "GROWTH_INTERVAL", 1, "GROWTH_FACTOR", 4.0), [32.0, 128.0, 64.0, 256.0]),
        (("INIT", 8.0, "BACKOFF_FACTOR", 0.25), [8.0, 8.0, 2.0, 2.0]),
        (("INIT", 8.0, "GROWTH_INTERVAL", 0), [8.0, 8.0, 8.0, 8.0]),
    ],
)
def test_a_scale_grows_falls_back_or_stays(options, expected):
    cfg = get_cfg()
    pairs = zip(options[::2], options[1::2], strict=True)
    cfg.merge_from_list([x for k, v in pairs for x in (f"SOLVER.AMP.LOSS_SCALE.{k}", v)])
    assert scales(cfg, [1.0, 1.0, float("inf"), 1.0]) == expected


def test_bfloat16_needs_no_scale():
    cfg = get_cfg()
    cfg.SOLVER.AMP.PRECISION = "bfloat16"
    assert not build_grad_scaler(cfg, "cpu").is_enabled()


def test_a_factor_that_cannot_be_is_refused():
    cfg = get_cfg()
    cfg.SOLVER.AMP.LOSS_SCALE.GROWTH_FACTOR = 1.0
    with pytest.raises(ConfigError, match="LOSS_SCALE: The growth factor must be > 1"):
        build_grad_scaler(cfg, "cpu")


@pytest.mark.parametrize(("interval", "scale"), [(0, 4.0), (7, 64.0)])
def test_a_checkpoint_does_not_undo_what_the_config_says(interval, scale):
    saved = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2000)
    saved.scale(torch.ones(1))
    cfg = get_cfg()
    cfg.SOLVER.AMP.LOSS_SCALE.INIT = 4.0
    cfg.SOLVER.AMP.LOSS_SCALE.GROWTH_INTERVAL = interval
    scaler = build_grad_scaler(cfg, "cpu")
    scaler.load_state_dict(saved.state_dict())
    assert scaler.get_scale() == scale
    assert interval == 0 or scaler.get_growth_interval() == interval
