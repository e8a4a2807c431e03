"""FirstStepCheck: says which parameters do not learn, once, when it can be known."""

import logging
from typing import Any

from torch import nn

from engine.hooks.base import HookBase, Priority
from engine.parallel import comm
from engine.parallel.fsdp import is_sharded
from engine.utils.wrapping import unwrap

logger = logging.getLogger(__name__)

SHOWN = 5  # names in a line


class FirstStepCheck(HookBase):
    """After the first backward pass, warns of trainable parameters that got no gradient, that are
    not in the optimizer, or whose learning rate is 0 and stays so.

    Ranks of a sharded model that have gradients of different parameters are an error: torch would
    add up what does not belong together.
    """

    priority = Priority.VERY_HIGH  # before hooks that change gradients

    @property
    def is_joint(self) -> bool:  # type: ignore[override]
        """Whether all ranks must have it."""
        model = getattr(self.trainer, "model", None)
        return isinstance(model, nn.Module) and is_sharded(model)

    def before_train(self) -> None:
        self._is_done = False

    def after_backward(self) -> None:
        if not self._is_done:
            self._is_done = True
            if self.is_joint:
                self._compare_ranks()
            if comm.is_main_process():
                self._report()

    def _compare_ranks(self) -> None:
        model: Any = self.trainer.model  # type: ignore[attr-defined]
        used = {name: p.grad is not None for name, p in model.named_parameters()}
        ranks = comm.all_gather(used)  # each may have parameters of its own besides
        if differing := [n for n in used if any(rank.get(n, used[n]) != used[n] for rank in ranks)]:
            raise RuntimeError(
                f"some ranks have a gradient of {differing[0]} and others none: in a sharded "
                "model all ranks must use the same parameters in a step; use STRATEGY ddp with "
                "FIND_UNUSED_PARAMETERS"
            )

    def _report(self) -> None:
        model: Any = getattr(self.trainer, "model", None)
        optimizer: Any = getattr(self.trainer, "optimizer", None)
        if not (isinstance(model, nn.Module) and hasattr(optimizer, "param_groups")):
            return  # a trainer of another kind
        trained = {n: p for n, p in unwrap(model).named_parameters() if p.requires_grad}
        rates = {
            parameter: group["lr"] or group.get("initial_lr", 0)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        findings = {
            "got no gradient": [name for name, p in trained.items() if p.grad is None],
            "are not in the optimizer": [name for name, p in trained.items() if p not in rates],
            "have a learning rate of 0": [n for n, p in trained.items() if rates.get(p) == 0],
        }
        for finding, names in findings.items():
            if names:
                logger.warning(
                    "Of %d trained parameters, %d %s: %s",
                    len(trained),
                    len(names),
                    finding,
                    ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else ""),
                )
        if not any(findings.values()):
            logger.info("All %d trained parameters have a gradient and learn", len(trained))
