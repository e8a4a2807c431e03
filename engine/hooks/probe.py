"""ProbeHook: intermediate results of chosen steps as files."""

import json
import logging
import math
import os
import re
from typing import Any

import numpy as np
import torch

from engine.events import get_event_storage, has_event_storage
from engine.events.media import as_image
from engine.hooks.base import HookBase, Priority
from engine.parallel import comm
from engine.utils.files import atomic_write
from engine.utils.periods import is_due, read_period

logger = logging.getLogger(__name__)

Probe = torch.Tensor | np.ndarray | str | int | float


def probe(name: str, value: Probe) -> None:
    """Show an intermediate result to the ProbeHook, from anywhere in a model.

    It is kept as it is at that moment, in the steps that a ProbeHook wants; in all others the call
    costs next to nothing. The last value of a name counts. A tensor or array of uint8 in the shape
    CHW or HWC is an image.
    """
    if has_event_storage():
        probes = vars(get_event_storage()).get("_probes")  # the underscore: not in checkpoints
        if probes is not None:
            probes[name] = _keep(name, value)


class ProbeHook(HookBase):
    """Writes what was probed to `OUTPUT_DIR/step-N/` every `period`, with an `index.json`.

    Tensors become .pt files, images .png, texts .txt; numbers stand in the index. Images and
    numbers also go to the writers as `probe/NAME`. Ranks other than 0 have a folder each inside.
    """

    priority = Priority.ABOVE_NORMAL  # what an evaluation probes is not of this step

    def __init__(self, output_dir: str, period: int | str = 1000) -> None:
        self._output_dir = os.fspath(output_dir)
        self._period = read_period(period)

    def before_step(self) -> None:
        if is_due(self._period, self.trainer):
            vars(self.trainer.storage)["_probes"] = {}

    def after_step(self) -> None:
        probes = vars(self.trainer.storage).pop("_probes", None)
        if probes:
            rank = comm.get_rank()
            folder = os.path.join(self._output_dir, f"step-{self.trainer.iter}")
            try:
                _write(probes, os.path.join(folder, f"rank-{rank}") if rank else folder)
            except OSError as error:  # a full disk is no reason to end a run
                logger.warning("%s is not written (%s)", folder, error)
            if rank == 0:
                self._show(probes)

    def _show(self, probes: dict[str, Any]) -> None:
        storage = self.trainer.storage
        for name, value in probes.items():
            if _is_image(value):
                storage.put_image(f"probe/{name}", value)
            elif isinstance(value, int | float):
                storage.put_scalar(f"probe/{name}", value, smoothing_hint=False)


def _keep(name: str, value: Any) -> torch.Tensor | str | int | float:
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value.copy())  # a copy is never flipped or read-only
    if isinstance(value, torch.Tensor):
        tensor = value.detach().to("cpu", copy=True)
        return tensor if tensor.ndim else tensor.item()
    if isinstance(value, np.number | np.bool_):
        return value.item()
    if isinstance(value, str | int | float):
        return value
    raise TypeError(
        f"probe {name!r} must be a tensor, an array, text or a number, got {type(value).__name__}"
    )


def _is_image(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype != torch.uint8 or value.ndim != 3:
        return False
    return value.numel() > 0 and not {value.shape[0], value.shape[2]}.isdisjoint((1, 3, 4))


def _write(probes: dict[str, Any], folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    index = {}
    for number, (name, value) in enumerate(probes.items()):
        # Numbered, as two names may become the same where they are made fit for a file.
        stem = f"{number}-" + re.sub(r"[^\w.-]", "_", name)
        index[name] = _write_one(os.path.join(folder, stem), value)
    with atomic_write(os.path.join(folder, "index.json"), "w") as file:
        json.dump(index, file, indent=2)


def _write_one(path: str, value: Any) -> dict[str, Any]:
    """Write a value to a file, unless it is a number; returns what the index says of it."""
    if isinstance(value, int | float):
        return {"kind": "number", "value": value if math.isfinite(value) else None}
    kind, ending = "tensor", "pt"
    if isinstance(value, str):
        kind, ending = "text", "txt"
    elif _is_image(value):
        kind, ending = "image", "png"
    with atomic_write(f"{path}.{ending}") as file:
        if kind == "tensor":
            torch.save(value, file)
        else:
            file.write(value.encode() if kind == "text" else _encode_png(value))
    return {"kind": kind, "file": os.path.basename(f"{path}.{ending}")}


def _encode_png(image: torch.Tensor) -> bytes:
    from torch.utils.tensorboard.summary import image as make_summary

    pixels = as_image("probe", image).numpy()
    return make_summary("probe", pixels, dataformats="CHW").value[0].image.encoded_image_string
