"""Hooks that follow from a config alone."""

import inspect
import logging
import re
from typing import Any

from engine import hooks
from engine.config import CfgNode, ConfigError, check_arguments, naming
from engine.utils.periods import Period
from engine.utils.registry import Registry, find, locate

logger = logging.getLogger(__name__)

IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

HOOK_REGISTRY = Registry("HOOK")
"""Hooks that a config names in HOOKS, beside those of `engine.hooks`."""
for _name in hooks.__all__:
    _offered = getattr(hooks, _name)
    if isinstance(_offered, type) and issubclass(_offered, hooks.HookBase):
        HOOK_REGISTRY.register(_offered)


def build_hook(settings: dict[str, Any], **offered: Any) -> hooks.HookBase:
    """A hook from an entry of HOOKS: {NAME: EMAHook, START: 500, PRIORITY: NORMAL}.

    A function among its arguments is named by its import path: {…, DRAW: package.module:draw}.
    What is offered fills arguments of that name that the entry does not have, and that have no
    default.
    """
    if not isinstance(settings, dict) or "NAME" not in settings:
        raise ConfigError(f"an entry of HOOKS is {{NAME: …, and arguments}}, got {settings!r}")
    arguments = {key.lower(): value for key, value in settings.items()}
    priority = arguments.pop("priority", None)
    hook_class = find(HOOK_REGISTRY, arguments.pop("name"))
    check_arguments(hook_class, arguments, "HOOKS")
    where = f"HOOKS: {settings['NAME']}"
    for name, parameter in inspect.signature(hook_class).parameters.items():
        if name in offered and parameter.default is parameter.empty:
            arguments.setdefault(name, offered[name])
    signature = inspect.signature(hook_class)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}; its arguments are {signature}") from error
    for key, value in arguments.items():
        if isinstance(value, str) and IMPORT_PATH.fullmatch(value):
            arguments[key] = locate(value)
    with naming(where):
        hook = hook_class(**arguments)
        if priority is not None:
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
