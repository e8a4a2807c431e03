"""Hooks that follow from a config alone."""

import inspect
from typing import Any

from engine import hooks
from engine.config import CfgNode, ConfigError
from engine.utils.registry import Registry, find, locate

HOOK_REGISTRY = Registry("HOOK")
"""Hooks that a config names in HOOKS, beside those of `engine.hooks`."""
for _name in hooks.__all__:
    _offered = getattr(hooks, _name)
    if isinstance(_offered, type) and issubclass(_offered, hooks.HookBase):
        HOOK_REGISTRY.register(_offered)


def build_hook(settings: dict[str, Any]) -> hooks.HookBase:
    """A hook from an entry of HOOKS: {NAME: EMAHook, START: 500, PRIORITY: NORMAL}.

    A function among its arguments is named by its import path: {…, DRAW: package.module:draw}.
    """
    if not isinstance(settings, dict) or "NAME" not in settings:
        raise ConfigError(f"an entry of HOOKS is {{NAME: …, and arguments}}, got {settings!r}")
    arguments = {key.lower(): value for key, value in settings.items()}
    priority = arguments.pop("priority", None)
    hook_class = find(HOOK_REGISTRY, arguments.pop("name"))
    signature = inspect.signature(hook_class)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"HOOKS: {settings['NAME']}: {error}; its arguments are {signature}"
        ) from error
    for key, parameter in signature.parameters.items():
        if "Callable" in str(parameter.annotation) and isinstance(arguments.get(key), str):
            arguments[key] = locate(arguments[key])
    hook = hook_class(**arguments)
    if priority is not None:
        hook.priority = hooks.Priority.parse(priority)
    return hook


def build_ema(cfg: CfgNode) -> hooks.HookBase | None:
    ema = cfg.EMA
    return hooks.EMAHook(ema.DECAY, ema.START, ema.PERIOD, ema.BUFFERS) if ema.ENABLED else None


def build_early_stopping(cfg: CfgNode) -> hooks.HookBase | None:
    stopping = cfg.EARLY_STOPPING
    if not stopping.METRIC:
        return None
    return hooks.EarlyStopping(stopping.METRIC, stopping.PATIENCE, min_delta=stopping.MIN_DELTA)


def build_time_limit(cfg: CfgNode) -> hooks.HookBase | None:
    try:
        return hooks.TimeLimit(cfg.TIME_LIMIT) if cfg.TIME_LIMIT else None
    except ValueError as error:
        raise ConfigError(f"TIME_LIMIT: {error}") from error


def build_watchdog(cfg: CfgNode) -> hooks.HookBase | None:
    if not cfg.DEFAULT_HOOKS.Watchdog.ENABLED:
        return None
    try:
        return hooks.Watchdog(cfg.WATCHDOG.TIMEOUT, cfg.WATCHDOG.FACTOR)
    except ValueError as error:
        raise ConfigError(f"WATCHDOG.TIMEOUT: {error}") from error
