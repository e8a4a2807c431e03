"""What DefaultTrainer tells of a run: before its first step, and in its last lines."""

import logging
from collections.abc import Sequence
from typing import Any

from torch import nn

from engine.checkpoint import Checkpointer
from engine.config import CfgNode, unread_keys
from engine.hooks import BestCheckpointer, HookBase
from engine.parallel.fsdp import is_sharded
from engine.utils.analysis import model_summary, parameter_status_table

logger = logging.getLogger(__name__)


def log_analysis(model: nn.Module, batch: Any) -> None:
    """How large the model is, and which of its parameters train."""
    if is_sharded(model):
        logger.warning("ANALYSIS: the FLOPs of a sharded model cannot be counted")
    else:
        logger.info(model_summary(model, batch))
    logger.info("Parameters:\n%s", parameter_status_table(model))


def list_unread_keys(cfg: CfgNode) -> None:
    """Warn of settings that were given and that nothing has looked at; of evaluations, nothing may
    have done so yet."""
    will_be_read: tuple[str, ...] = ()
    if cfg.DEFAULT_HOOKS.EvalHook.ENABLED:
        will_be_read = ("TEST.", "DATASETS.TEST", "DATASETS.VAL", "DATALOADER.TEST_MAPPER")
    unread = [key for key in unread_keys(cfg) if not key.startswith(will_be_read)]
    if unread:
        logger.warning("Settings that nothing has read so far: %s", ", ".join(unread))


def log_end(hooks: Sequence[HookBase], checkpointer: Checkpointer, requeue: bool) -> None:
    """What the run has left, and what to do next."""
    for hook in hooks:
        if isinstance(hook, BestCheckpointer):
            logger.info("%s", hook.describe())
    if checkpointer.save_dir and checkpointer.has_any():
        logger.info("The last checkpoint is %s", checkpointer.get_checkpoint_file())
    if requeue:
        logger.info("The run is not complete: start it again with --resume")
