"""Errors that say all that a user has to know: which setting, name or file, and what to do."""

from engine.checkpoint import CheckpointError
from engine.config import ConfigError
from engine.parallel.errors import StrategyError
from engine.parallel.network import FlagError
from engine.utils.claims import FolderInUseError
from engine.utils.registry import UnknownNameError

MISTAKES = (
    CheckpointError,
    ConfigError,
    FlagError,
    FolderInUseError,
    StrategyError,
    UnknownNameError,
)
"""A traceback adds nothing to them."""
