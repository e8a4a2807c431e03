"""@configurable: build an object from explicit arguments or from a config."""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from yacs.config import CfgNode


def configurable(
    init_func: Callable[..., Any] | None = None,
    *,
    from_config: Callable[..., dict[str, Any]] | None = None,
) -> Callable[..., Any]:
    """Let `__init__`, or a function, be called with its own arguments or with a config first::

        class Model:
            @configurable
            def __init__(self, width, depth=2): ...

            @classmethod
            def from_config(cls, cfg):
                return {"width": cfg.MODEL.WIDTH}

        Model(width=8)             # as written
        Model(cfg)                 # width from the config
        Model(cfg, depth=3)        # keywords that from_config does not take win over the config

        @configurable(from_config=lambda cfg: {"width": cfg.MODEL.WIDTH})
        def build(width, depth=2): ...

    `from_config` may take more than the config: what it has parameters for goes to it.
    """
    if init_func is not None:
        if not inspect.isfunction(init_func) or init_func.__name__ != "__init__":
            raise TypeError(
                f"@configurable without from_config is for a class's __init__, got {init_func!r}; "
                "for a function write @configurable(from_config=...)"
            )
        return _configurable_init(init_func)
    if from_config is None:
        raise TypeError("@configurable() needs from_config=...; on an __init__ leave out the ()")
    if not callable(from_config):
        raise TypeError(f"from_config must be a function of the config, got {from_config!r}")
    return functools.partial(_configurable_function, from_config=from_config)


def _configurable_init(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        if _has_config(args, kwargs):
            init(self, **_arguments(_from_config_of(type(self)), args, kwargs))
        else:
            init(self, *args, **kwargs)

    return wrapped


def _configurable_function(
    func: Callable[..., Any], from_config: Callable[..., dict[str, Any]]
) -> Callable[..., Any]:
    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if _has_config(args, kwargs):
            return func(**_arguments(from_config, args, kwargs))
        return func(*args, **kwargs)

    wrapped.from_config = from_config  # type: ignore[attr-defined]
    return wrapped


def _from_config_of(cls: type) -> Callable[..., dict[str, Any]]:
    from_config = getattr(cls, "from_config", None)
    if from_config is None:
        raise AttributeError(
            f"{cls.__name__} was given a config, but has no classmethod from_config(cls, cfg)"
        )
    if not inspect.ismethod(from_config):
        raise TypeError(f"{cls.__name__}.from_config must be a @classmethod")
    return from_config


def _has_config(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    kinds: tuple[type, ...] = (CfgNode,)
    if omegaconf := sys.modules.get("omegaconf"):  # not imported: nothing can be one of its own
        kinds += (omegaconf.DictConfig,)
    return isinstance(args[0] if args else kwargs.get("cfg"), kinds)


def _arguments(
    from_config: Callable[..., dict[str, Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    parameters = inspect.signature(from_config).parameters
    if not args:
        args = (kwargs.pop("cfg"),)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    taken = {name: value for name, value in kwargs.items() if takes_all or name in parameters}
    arguments = from_config(*args, **taken)
    if not isinstance(arguments, dict):
        raise TypeError(f"from_config must return a dict of arguments, got {arguments!r}")
    return {**arguments, **{name: kwargs[name] for name in kwargs.keys() - taken.keys()}}
