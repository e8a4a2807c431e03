"""The loss scale of float16: dynamic, or constant."""

from typing import Any

import torch

from engine.config import CfgNode, ConfigError


class ConstantGradScaler(torch.amp.GradScaler):
    """Skips steps whose gradients are infinite, and never changes its scale."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the scale it was made with."""

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        super().update(self._init_scale if new_scale is None else new_scale)


class ConfiguredGradScaler(torch.amp.GradScaler):
    """Goes on with the scale of a checkpoint, and with the factors it was made with."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = {key: state_dict[key] for key in ("scale", "_growth_tracker")}
        super().load_state_dict({**self.state_dict(), **saved})


def build_grad_scaler(cfg: CfgNode, device_type: str) -> torch.amp.GradScaler:
    """The scaler that SOLVER.AMP describes: one that does nothing for bfloat16."""
    scale = cfg.SOLVER.AMP.LOSS_SCALE
    is_on = cfg.SOLVER.AMP.PRECISION == "float16"
    if scale.GROWTH_INTERVAL == 0:
        return ConstantGradScaler(device_type, init_scale=scale.INIT, enabled=is_on)
    try:
        return ConfiguredGradScaler(
            device_type,
            init_scale=scale.INIT,
            growth_factor=scale.GROWTH_FACTOR,
            backoff_factor=scale.BACKOFF_FACTOR,
            growth_interval=scale.GROWTH_INTERVAL,
            enabled=is_on,
        )
    except AssertionError as error:  # torch's way to refuse a factor
        raise ConfigError(f"SOLVER.AMP.LOSS_SCALE: {error}") from None
