"""A checkpoint as one file, in one process."""

import os
from typing import Any

import torch

from engine.checkpoint.averages import find_averages
from engine.checkpoint.file import CheckpointError, read_file
from engine.checkpoint.folder import is_listed
from engine.checkpoint.manifest import Manifest
from engine.checkpoint.safetensors_file import as_safetensors
from engine.checkpoint.sharded import read_sharded
from engine.utils.files import atomic_write


def consolidate_checkpoint(
    checkpoint: str, output: str, *, weights_only: bool = False, average: bool = False
) -> None:
    """Write a checkpoint, a folder of shards or a .pth, as one file: .pth or .safetensors.

    A .pth holds all that the checkpoint does, or with `weights_only` the weights alone, as a
    .safetensors always does. With `average` the weights are those that EMAHook has averaged, and
    nothing else is written.
    """
    if not output.endswith((".pth", ".safetensors")):
        raise ValueError(f"the output is {output!r}; it must end in .pth or .safetensors")
    weights_only |= average or output.endswith(".safetensors")
    parent, name = os.path.split(os.path.abspath(checkpoint))
    manifest = Manifest(parent)
    if not os.path.exists(found := manifest.locate(name)):
        raise FileNotFoundError(f"there is no checkpoint {checkpoint}")
    if damage := manifest.damage(name):
        raise CheckpointError(f"the checkpoint {checkpoint} is damaged: {damage}")

    there, target = os.path.split(os.path.abspath(output))
    if target in Manifest(there).records() or os.path.realpath(output) == os.path.realpath(found):
        raise ValueError(f"the output {output} is a checkpoint that is there: name another file")

    def is_wanted(where: str) -> bool:
        is_average = average and "['average'][" in where
        return not weights_only or where.startswith("model[") or is_average

    if is_listed(parent):
        raise ValueError(f"{checkpoint} is a part of a checkpoint, which is the folder {parent}")
    is_folder = os.path.isdir(found)
    state = read_sharded(found, is_wanted=is_wanted) if is_folder else read_file(found)
    if average:
        state["model"] = _averaged(state, checkpoint)
    if weights_only:
        state = {"model": state["model"]}
    os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
    with atomic_write(output) as file:
        if output.endswith(".pth"):
            torch.save(state, file)
        else:
            file.write(as_safetensors(state["model"]))


def _averaged(state: dict[str, Any], checkpoint: str) -> dict[str, torch.Tensor]:
    averages = find_averages(state)
    if not averages:
        raise ValueError(f"{checkpoint} holds no average of the weights: EMA was off in its run")
    if len(averages) > 1:
        raise ValueError(f"{checkpoint} holds {len(averages)} averages: it is not clear which")
    weights = state["model"]
    average = {name: value for name, value in averages[0].items() if name in weights}
    if not average:  # a buffer that is not saved may be among others
        raise ValueError(
            f"{checkpoint} holds an average of {next(iter(averages[0]))!r}, which is no weight of "
            "its model: EMAHook averaged another one"
        )
    # By memory, as a weight may have two names and its average has one.
    by_weight = {
        _place(weights[name]): value.to(weights[name].dtype)  # it may be kept more precisely
        for name, value in average.items()
    }
    return {
        name: by_weight.get(_place(weight), weight) if torch.is_tensor(weight) else weight
        for name, weight in weights.items()
    }


def _place(weight: torch.Tensor) -> tuple[int, torch.Size]:
    return weight.data_ptr(), weight.shape
