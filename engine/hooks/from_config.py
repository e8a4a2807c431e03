"""Hooks that follow from a config alone."""

import logging
from typing import Any

from engine import hooks
from engine.config import CfgNode, build_entry, naming
from engine.utils.periods import Period
from engine.utils.registry import Registry

logger = logging.getLogger(__name__)

HOOK_REGISTRY = Registry("HOOK")
"""Hooks that a config names in HOOKS, beside those of `engine.hooks`."""
for _name in hooks.__all__:
    _offered = getattr(hooks, _name)
    if isinstance(_offered, type) and issubclass(_offered, hooks.HookBase):
        HOOK_REGISTRY.register(_offered)


def build_hook(settings: dict[str, Any], **offered: Any) -> hooks.HookBase:
    """A hook from an entry of HOOKS: {NAME: EMAHook, START: 500, PRIORITY: NORMAL}.

    What is offered fills arguments of that name, as `build_entry` says.
    """
    priority = None
    if isinstance(settings, dict):
        keys = [key for key in settings if str(key).lower() == "priority"]
        priority = settings[keys[0]] if keys else None
        settings = {key: value for key, value in settings.items() if key not in keys}
    hook = build_entry("HOOKS", settings, HOOK_REGISTRY, offered, hooks.HookBase)
    if priority is not None:
        with naming(f"HOOKS: {settings['NAME']}"):
            hook.priority = hooks.Priority.parse(priority)
    return hook


def build_ema(cfg: CfgNode) -> hooks.HookBase | None:
    """The EMAHook that EMA describes, if it is on."""
    ema = cfg.EMA
    return hooks.EMAHook(ema.DECAY, ema.START, ema.PERIOD, ema.BUFFERS) if ema.ENABLED else None


def build_early_stopping(cfg: CfgNode) -> hooks.HookBase | None:
    """The EarlyStopping that EARLY_STOPPING describes, if it names a metric."""
    stopping = cfg.EARLY_STOPPING
    if not stopping.METRIC:
        return None
    if Period(cfg.TEST.EVAL_PERIOD).is_never:
        logger.warning("EARLY_STOPPING cannot act: TEST.EVAL_PERIOD is %s", cfg.TEST.EVAL_PERIOD)
    with naming("EARLY_STOPPING.METRIC"):
        return hooks.EarlyStopping(stopping.METRIC, stopping.PATIENCE, min_delta=stopping.MIN_DELTA)


def build_time_limit(cfg: CfgNode) -> hooks.HookBase | None:
    """The hook that ends the run at TIME_LIMIT, if there is one."""
    with naming("TIME_LIMIT"):
        return hooks.TimeLimit(cfg.TIME_LIMIT) if cfg.TIME_LIMIT else None


def build_watchdog(cfg: CfgNode) -> hooks.HookBase | None:
    """The hook that says where a run hangs, unless it is off."""
    if not cfg.DEFAULT_HOOKS.Watchdog.ENABLED:
        return None
    with naming("WATCHDOG.TIMEOUT"):
        return hooks.Watchdog(cfg.WATCHDOG.TIMEOUT, cfg.WATCHDOG.FACTOR)
