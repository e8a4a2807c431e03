"""SyncBuffersHook: the same buffers on all ranks."""

import torch

from engine.hooks.base import HookBase, Priority
from engine.hooks.joint_period import JointPeriod
from engine.parallel import comm
from engine.utils.periods import is_due, read_period


class SyncBuffersHook(HookBase):
    """Replaces floating-point buffers (statistics of batch norm) by their mean over the ranks."""

    priority = Priority.HIGH  # before averages, evaluations and checkpoints use the buffers
    is_joint = True

    def __init__(self, period: int | str = "1 epoch") -> None:
        self._period = read_period(period, JointPeriod)

    def after_step(self) -> None:
        if comm.get_world_size() > 1 and is_due(self._period, self.trainer):
            self.synchronize()

    @torch.no_grad()
    def synchronize(self) -> None:
        """Take the mean now; all ranks must call it."""
        model = self.trainer.model  # type: ignore[attr-defined]
        buffers = {n: buffer for n, buffer in model.named_buffers() if buffer.is_floating_point()}
        for name, mean in comm.reduce_dict(buffers).items():
            buffers[name].copy_(mean)
