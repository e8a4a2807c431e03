"""Tools that know nothing of training: logging, files, registries, environment, analysis.

`environment` (a command: `python -m engine.utils.environment`) and `analysis` are imported by
their own names.
"""

from engine.utils.files import PathHandler, PathManager, atomic_write
from engine.utils.logger import (
    create_small_table,
    log_every_n,
    log_every_n_seconds,
    log_first_n,
    setup_logger,
)
from engine.utils.memory import retry_if_cuda_oom
from engine.utils.registry import Registry, locate
from engine.utils.suggest import did_you_mean

__all__ = [
    "PathHandler",
    "PathManager",
    "Registry",
    "atomic_write",
    "create_small_table",
    "did_you_mean",
    "locate",
    "log_every_n",
    "log_every_n_seconds",
    "log_first_n",
    "retry_if_cuda_oom",
    "setup_logger",
]
