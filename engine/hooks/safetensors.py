"""SafetensorsHook: the weights alone, for other programs."""

import os

import torch

from engine.checkpoint.safetensors_file import as_safetensors, import_safetensors
from engine.hooks.base import HookBase, Priority
from engine.hooks.checkpointing import failed_save_is_a_warning, may_save_last
from engine.hooks.joint_period import JointPeriod
from engine.parallel import comm
from engine.parallel.fsdp import is_sharded, is_sharded_tensor
from engine.utils.files import atomic_write
from engine.utils.periods import is_due, read_period
from engine.utils.wrapping import plain_names, unwrap


class SafetensorsHook(HookBase):
    """Saves the weights alone as `PREFIX_0000499.safetensors` every `period` and at the end."""

    priority = Priority.LOWEST

    def __init__(self, output_dir: str, period: int | str = 5000, prefix: str = "model") -> None:
        import_safetensors()  # it may not be installed
        self._output_dir = os.fspath(output_dir)
        self._period = read_period(period)
        self._prefix = prefix

    def before_train(self) -> None:
        if is_sharded(self.trainer.model):  # type: ignore[attr-defined]
            self._period = read_period(self._period, JointPeriod)  # all ranks gather the weights

    def after_step(self) -> None:
        if is_due(self._period, self.trainer):
            name = f"{self._prefix}_{self.trainer.iter:07d}"
            with failed_save_is_a_warning(name):
                self._save(name)

    def after_train(self) -> None:
        is_joint = is_sharded(self.trainer.model)  # type: ignore[attr-defined]
        if may_save_last(self.trainer, is_joint) and not self.trainer.requeue:
            self._save(f"{self._prefix}_final")

    def _save(self, name: str) -> None:
        model = self.trainer.model  # type: ignore[attr-defined]
        if not comm.is_main_process() and not is_sharded(model):
            return
        model = unwrap(model)
        plain = plain_names(model)
        weights = {plain(name): _whole(one) for name, one in model.state_dict().items()}
        if not comm.is_main_process():
            return
        os.makedirs(self._output_dir, exist_ok=True)
        with atomic_write(os.path.join(self._output_dir, f"{name}.safetensors")) as file:
            file.write(as_safetensors(weights))


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if is_sharded_tensor(tensor) else tensor  # type: ignore[attr-defined]
