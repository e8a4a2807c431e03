"""VisualizationHook: pictures of what a model predicts."""

from collections.abc import Callable
from typing import Any

import torch

from engine.hooks.base import HookBase, Priority
from engine.parallel import comm


class VisualizationHook(HookBase):
    """Draws the first and then every `period`-th batch of an evaluation, for the writers.

    `draw` gets what the model returned for the batch, and returns an image (CHW) or None for none.
    Batch n is stored as `NAME/n`, so that a writer can show how it changes over the run. Only the
    main process draws.
    """

    priority = Priority.NORMAL  # anywhere before the writers

    def __init__(
        self,
        draw: Callable[[Any], torch.Tensor | None],
        period: int = 50,
        name: str = "prediction",
    ) -> None:
        if not callable(draw):
            raise TypeError(f"draw is called with what the model returned, got {draw!r:.80}")
        if period < 1:
            raise ValueError(f"period must be 1 batch or more, got {period}")
        self._draw = draw
        self._period = period
        self._name = name
        self._batch = 0

    def before_eval(self) -> None:
        self._batch = 0

    def after_eval_step(self, outputs: Any) -> None:
        batch, self._batch = self._batch, self._batch + 1
        if batch % self._period == 0 and comm.is_main_process():
            image = self._draw(outputs)
            if image is not None:
                self.trainer.storage.put_image(f"{self._name}/{batch}", image)
