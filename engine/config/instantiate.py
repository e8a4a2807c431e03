"""instantiate: build the objects that a lazy config describes."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from engine.utils.registry import locate

TARGET = "_target_"


def instantiate(cfg: Any) -> Any:
    """Call what `_target_` names with the other entries as arguments, those built first.

    Lists and tuples are built item by item, a node made from a dataclass becomes that dataclass,
    and anything else is returned as it is.
    """
    from omegaconf import DictConfig, ListConfig, OmegaConf

    if isinstance(cfg, tuple) or type(cfg).__name__ == "TupleConfig":  # of omegaconf 2.4
        return tuple(instantiate(item) for item in cfg)
    if isinstance(cfg, list | ListConfig):
        return [instantiate(item) for item in cfg]
    if isinstance(cfg, DictConfig) and is_dataclass(OmegaConf.get_type(cfg)):
        return OmegaConf.to_object(cfg)
    if not isinstance(cfg, Mapping) or TARGET not in cfg:
        return cfg
    arguments = {key: instantiate(value) for key, value in cfg.items()}
    target = arguments.pop(TARGET)
    if isinstance(target, str):
        target = locate(target)
    if not callable(target):
        raise TypeError(
            f"{TARGET} must be a class, a function or the dotted name of one, got {target!r}"
        )
    try:
        return target(**arguments)
    except Exception as error:
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"while building {target} with {', '.join(arguments) or 'no arguments'}")
        raise
