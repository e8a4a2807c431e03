"""Settings: `CfgNode` with its tree of defaults, `configurable`, and lazy configs in Python."""

from typing import TYPE_CHECKING, Any

from engine.config.configurable import configurable
from engine.config.defaults import get_cfg
from engine.config.differences import config_differences
from engine.config.entries import build_entry
from engine.config.errors import ConfigError, check_arguments, naming, naming_unknown
from engine.config.instantiate import instantiate
from engine.config.node import CfgNode
from engine.config.reads import is_tracked, track_reads, unread_keys
from engine.config.template import config_template
from engine.config.value_types import Given, Length, OneOf, Within

if TYPE_CHECKING:
    from engine.config.lazy import LazyCall, LazyConfig

__all__ = [
    "CfgNode",
    "ConfigError",
    "Given",
    "LazyCall",
    "LazyConfig",
    "Length",
    "OneOf",
    "Within",
    "build_entry",
    "check_arguments",
    "config_differences",
    "config_template",
    "configurable",
    "get_cfg",
    "instantiate",
    "is_tracked",
    "naming",
    "naming_unknown",
    "track_reads",
    "unread_keys",
]


def __getattr__(name: str) -> Any:
    if name in ("LazyCall", "LazyConfig"):  # omegaconf is imported by those who use it
        from engine.config import lazy

        return getattr(lazy, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
