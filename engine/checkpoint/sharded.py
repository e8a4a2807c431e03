"""States with sharded tensors as a folder: each rank writes and reads its own parts.

The parts are in the files of torch.distributed.checkpoint. All else is in `state.pth`, a plain file
in which a tensor without data (on the device "meta") stands in the place of each sharded one.
"""

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import torch

from engine.checkpoint.file import CheckpointError
from engine.checkpoint.folder import secure_file, temporary_name, write_listing
from engine.checkpoint.plain import as_plain
from engine.parallel import comm
from engine.parallel.fsdp import is_sharded_tensor
from engine.parallel.joint_errors import joint_errors
from engine.utils.files import atomic_write

STATE_FILE = "state.pth"
LONGEST_DELAY = 10.0  # seconds after which a file is to be seen on all machines


def refuse_unshared_folder(folder: str) -> None:
    """Raise on all ranks if some do not see what rank 0 writes in the folder. All ranks call it."""
    name = comm.all_gather(os.path.basename(temporary_name(os.path.join(folder, "shared"))))[0]
    path = os.path.join(folder, name)
    try:
        with joint_errors():
            if comm.is_main_process():
                os.makedirs(folder, exist_ok=True)
                open(path, "x").close()
        with joint_errors():
            deadline = time.monotonic() + LONGEST_DELAY
            while not os.path.exists(path) and time.monotonic() < deadline:
                time.sleep(0.1)
            if not os.path.exists(path):
                raise CheckpointError(
                    f"{folder} on {socket.gethostname()} is not the folder that rank 0 has under "
                    "that name: a sharded model is saved in one that all machines share"
                )
    finally:
        if comm.is_main_process():
            with suppress(FileNotFoundError):
                os.remove(path)


def write_sharded(folder: str, state: dict[str, Any], tied: dict[str, str]) -> None:
    """Write a complete folder. All ranks call it, and if it fails on one it raises on all.

    `tied` are weights that are saved under another name; the values of rank 0 are those that
    count of what is not sharded.
    """
    from engine.checkpoint.parts import INDEX, write_parts

    parts: dict[str, torch.Tensor] = {}

    def set_apart(tensor: torch.Tensor, where: str) -> torch.Tensor:
        if tensor.is_meta:
            raise TypeError(f"{where} has no data: it is on the device 'meta'")
        if not is_sharded_tensor(tensor):
            return tensor
        parts[where] = tensor
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    with joint_errors():
        plain = {key: as_plain(value, key, set_apart) for key, value in state.items()}
        # A model whose state dict is its own may leave out either name.
        tied = {one: first for one, first in tied.items() if {one, first} <= plain["model"].keys()}
        for name in tied:
            del plain["model"][name]
            parts.pop(f"model[{name!r}]", None)  # it may be in a part that is not sharded
    write_parts(folder, parts)
    with joint_errors():
        prefix = f"__{comm.get_rank()}_"
        own = [name for name in os.listdir(folder) if name.startswith(prefix)]
        if comm.is_main_process():
            with atomic_write(os.path.join(folder, STATE_FILE)) as file:
                torch.save({"state": plain, "tied": tied}, file)
            own += [STATE_FILE, INDEX]
        entries = {name: secure_file(os.path.join(folder, name)) for name in own}
    lists = comm.gather(entries)
    with joint_errors():
        if comm.is_main_process():
            write_listing(folder, {name: entry for one in lists for name, entry in one.items()})


def read_sharded(
    folder: str,
    like: torch.Tensor | None = None,
    is_wanted: Callable[[str], bool] = lambda where: True,
) -> dict[str, Any]:
    """The state in a folder: whole tensors, or parts cut and placed as those of `like` are.

    Ranks do not wait for each other. Tensors that are not wanted, by their place
    ("model['fc.weight']"), are left without data.
    """
    saved = torch.load(os.path.join(folder, STATE_FILE), map_location="cpu", weights_only=True)
    parts: dict[str, torch.Tensor] = {}

    def make_room(tensor: torch.Tensor, where: str) -> torch.Tensor:
        if not tensor.is_meta or not is_wanted(where):
            return tensor
        parts[where] = _empty(tensor, like)
        return parts[where]

    state = {key: as_plain(value, key, make_room) for key, value in saved["state"].items()}
    if parts:
        from engine.checkpoint.parts import read_parts

        read_parts(folder, parts)
    state["model"].update({name: state["model"][first] for name, first in saved["tied"].items()})
    return state


def _empty(meta: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:
    if like is None:
        return torch.empty(meta.shape, dtype=meta.dtype)
    from torch.distributed.tensor import DTensor, empty

    spec = cast(DTensor, like)
    return empty(
        meta.shape, dtype=meta.dtype, device_mesh=spec.device_mesh, placements=spec.placements
    )
