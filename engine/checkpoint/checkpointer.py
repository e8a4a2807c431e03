"""Checkpointer: saves and loads a model with everything that belongs to its run."""

import glob
import logging
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import torch
from fvcore.common.checkpoint import Checkpointer as FvcoreCheckpointer
from fvcore.common.checkpoint import (
    _filter_reused_missing_keys,
    _IncompatibleKeys,
    _strip_prefix_if_present,
)
from torch import nn

from engine.checkpoint.background import BackgroundSaves
from engine.checkpoint.file import (
    CheckpointError,
    MissingCheckpointError,
    read_file,
    unreadable_is_refused,
)
from engine.checkpoint.finite import first_nonfinite, infinite_constants
from engine.checkpoint.folder import (
    delete_checkpoint,
    is_listed,
    rename_folder,
    temporary_name,
)
from engine.checkpoint.last_checkpoint import FINAL, NUMBERED, begin_run, has_begun_anew, tag_last
from engine.checkpoint.manifest import Manifest
from engine.checkpoint.matching import (
    WRAPPER,
    fit_weights,
    match_by_suffix,
    mismatch_table,
    plain_state,
    shield_own_prefix,
)
from engine.checkpoint.plain import as_plain, whole
from engine.checkpoint.sharded import read_sharded, write_sharded
from engine.parallel import comm
from engine.parallel.fsdp import (
    is_sharded,
    is_sharded_tensor,
    shard_optimizer_state,
    tied_parameters,
)
from engine.parallel.joint_errors import joint_errors
from engine.utils.files import PathManager, absolute, atomic_write, is_remote
from engine.utils.wrapping import plain_names

_HEURISTICS = "?matching_heuristics=True"
_EXTRA_STATE = "_extra_state"  # torch's name for it


class Checkpointer(FvcoreCheckpointer):
    """Saves `model` and the `checkpointables` by name as `save_dir/NAME.pth`, and loads them.

    A file appears whole or not at all, and is listed with its checksum in `manifest.json`, which
    is compared when it is loaded. It holds plain values, and loading never runs code. Only the
    main process saves, unless `save_to_disk` says otherwise. A path that ends in
    `?matching_heuristics=True` matches weights by the ends of their names.

    Where the model or one of the `checkpointables` is sharded, all ranks together save a folder
    `save_dir/NAME` under the same terms: all of them call `save` and `load`, and what fails on one
    fails on all. A file or folder may be loaded by any number of ranks, sharded or not.

    With `background`, `save` returns when the state is copied (see `BackgroundSaves`), and a save
    that fails is a warning; `wait` returns when all is written. Folders are written at once.
    """

    _loading = "the checkpoint"  # its path, unless a subclass calls `_load_model` with its own

    def __init__(
        self,
        model: nn.Module,
        save_dir: str = "",
        *,
        save_to_disk: bool | None = None,
        background: bool = False,
        **checkpointables: Any,
    ) -> None:
        if save_to_disk is not False and is_remote(save_dir):
            raise CheckpointError(
                f"save_dir must be a local folder, got {os.fspath(save_dir)!r}: "
                "mount it, or save to a local one and copy that"
            )
        if save_to_disk is None:
            save_to_disk = comm.is_main_process()
        save_dir = absolute(save_dir)
        super().__init__(model, save_dir, save_to_disk=save_to_disk, **checkpointables)
        self.path_manager = PathManager
        self.logger = logging.getLogger(__name__)
        self.run = secrets.token_hex(8)
        self._began = time.time()
        self._manifest = Manifest(save_dir)
        self._background = BackgroundSaves() if background else None
        # A mask may be infinite by intention. What becomes so in training is not.
        self._unchecked = set(map(plain_names(self.model), infinite_constants(self.model)))

    def save(
        self,
        name: str,
        tag_as_last: bool = True,
        *,
        then: Callable[[], None] | None = None,
        **extra: Any,
    ) -> None:
        """Write `NAME.pth`, or the folder `NAME`; `tag_as_last` has a resumed run start from it.

        `then` is called when it is safe, on the rank that has written the file or its folder's
        list. A state with weights or optimizer moments that are NaN or infinite is refused with a
        FloatingPointError: what was saved before stays.
        """
        if not self.save_dir:
            return
        if self.saves_shards:
            self._save_folder(os.path.join(self.save_dir, name), tag_as_last, then, extra)
            return
        if not self.save_to_disk:
            return
        state = self._collect(extra)
        path = os.path.join(self.save_dir, f"{name}.pth")
        write = partial(self._write, path, tag_as_last, then)
        self.logger.info("Saving checkpoint to %s", path)
        if self._background is None:
            write({key: as_plain(value, key, whole) for key, value in state.items()})
        else:
            self._background.submit(partial(self._write_or_warn, write, path), state)

    @property
    def saves_shards(self) -> bool:
        """Whether the model or another one is sharded: all ranks save and load together then."""
        parts = (self.model, *self.checkpointables.values())
        return any(isinstance(part, nn.Module) and is_sharded(part) for part in parts)

    @property
    def saves_in_background(self) -> bool:
        """Whether `save` may return before the file is written."""
        return self._background is not None and bool(self.save_dir) and self.save_to_disk

    def wait(self) -> None:
        """Return when what `save` was given is written; raises if something was not."""
        if self._background is not None:
            self._background.wait()

    def names_of_run(self) -> set[str]:
        """The files in `save_dir` that were saved by this run, before it was resumed too."""
        records = self._manifest.records()
        return {name for name, record in records.items() if record.get("run") == self.run}

    def load(self, path: str, checkpointables: list[str] | None = None) -> dict[str, Any]:
        """Load the weights, and the states of all or of the named checkpointables.

        Returns what else the file holds. Raises if no weight fits the model.
        """
        if not path:
            self.logger.info("No checkpoint is given: the model starts from scratch")
            return {}
        checkpoint = self._read(path, is_joint=self.saves_shards)
        return self._apply(checkpoint, checkpointables)

    def resume_or_load(self, path: str, *, resume: bool = True) -> dict[str, Any]:
        """With `resume`, load the newest whole checkpoint of `save_dir` with all its states.

        Without, or where there is none, only the weights at `path`; "" leaves them as they are.
        A damaged checkpoint is named in a warning, and the one before it is used: by all ranks,
        all of which must call this.
        """
        names = comm.all_gather(self._newest_first())[0] if resume else []
        candidates = [os.path.join(self.save_dir, name) for name in names]
        for number, candidate in enumerate(candidates):
            try:
                checkpoint = self._read(candidate, is_joint=True)
            except (CheckpointError, FileNotFoundError) as error:
                if number == len(candidates) - 1:
                    raise
                self.logger.warning("%s; trying %s", error, candidates[number + 1])
                continue
            self._refuse_different(candidate)
            if self.checkpointables and checkpoint.keys().isdisjoint(self.checkpointables):
                raise CheckpointError(
                    f"{candidate} has no state of the {' or '.join(self.checkpointables)} to go on "
                    "from: begin a new run with its weights, or write the name of another "
                    "checkpoint into last_checkpoint"
                )
            loaded = self._apply(checkpoint, None)  # what does not fit is no damage
            self.logger.info("Resumed from %s", candidate)
            self._go_on_with_run_of(candidate)
            return loaded
        if resume:
            folder = os.path.abspath(self.save_dir)
            if has_begun_anew(self.save_dir):
                why = "the last run there ended before its first save. To go on from an older"
                how = "checkpoint, write its file name into last_checkpoint"
                self.logger.warning("Nothing to resume in %s: %s %s", folder, why, how)
            else:
                self.logger.warning("Nothing to resume: no checkpoint in %s", folder)
        return self.load(path, checkpointables=[])

    def has_any(self) -> bool:
        """Whether there is a checkpoint in `save_dir` to resume from."""
        return bool(self._newest_first())

    def begin_run(self) -> None:
        """Have a resume no longer go on from what an earlier run has left in the folder.

        What is saved from now on is of a run of its own.
        """
        self.run = secrets.token_hex(8)
        if self.save_dir and self.save_to_disk and begin_run(self.save_dir):
            self.logger.warning(
                "%s has checkpoints of an earlier run. This one begins anew and will replace them; "
                "to go on with the other, end it now and resume (--resume)",
                os.path.abspath(self.save_dir),
            )

    def has_checkpoint(self) -> bool:
        return super().has_checkpoint() and not has_begun_anew(self.save_dir)

    def get_checkpoint_file(self) -> str:
        try:
            path = super().get_checkpoint_file()
        except UnicodeDecodeError:
            path = ""
        # A damaged name is none, nor one that was cut to nothing: the newest checkpoint is taken.
        return "" if path and os.path.relpath(path, self.save_dir) == "." else path

    def tag_last_checkpoint(self, last_filename_basename: str) -> None:
        tag_last(self.save_dir, last_filename_basename)

    def _write(
        self, path: str, tag_as_last: bool, then: Callable[[], None] | None, data: dict[str, Any]
    ) -> None:
        self._refuse_nonfinite(data)
        self._tidy_folder()
        with atomic_write(path) as file:
            torch.save(data, file)
            file.flush()
            self._announce(path, file.name, data)
        self._settle(path, tag_as_last, then)

    def _save_folder(
        self, path: str, tag_as_last: bool, then: Callable[[], None] | None, extra: dict[str, Any]
    ) -> None:
        if not any(comm.all_gather(self.save_to_disk)):
            return
        is_main = comm.is_main_process()
        self.logger.info("Saving checkpoint to %s", path)
        with joint_errors():
            state = self._collect(extra)
            self._refuse_nonfinite(state)
            if is_main:
                self._tidy_folder()
        name = comm.all_gather(os.path.basename(temporary_name(path)))[0]
        written = os.path.join(self.save_dir, name)
        try:
            write_sharded(written, state, self._tied())
            with joint_errors():
                if is_main:
                    self._announce(path, written, extra)
                    if old := rename_folder(written, path):
                        delete_checkpoint(old)
                    self._settle(path, tag_as_last, then)
        except BaseException:
            if is_main:
                shutil.rmtree(written, ignore_errors=True)
            raise

    def _collect(self, extra: dict[str, Any]) -> dict[str, Any]:
        parts = {"model": self.model, **self.checkpointables}
        return {key: plain_state(part) for key, part in parts.items()} | extra

    def _tied(self) -> dict[str, str]:
        plain = plain_names(self.model)
        return {plain(name): plain(first) for name, first in tied_parameters(self.model).items()}

    def _refuse_nonfinite(self, state: dict[str, Any]) -> None:
        if bad := first_nonfinite(state, self._unchecked):
            raise FloatingPointError(f"{bad} is NaN or infinite")

    def _announce(self, path: str, written: str, state: dict[str, Any]) -> None:
        name, iteration = os.path.basename(path), state.get("iteration")
        self._manifest.announce(name, written, iteration=iteration, run=self.run)

    def _settle(self, path: str, tag_as_last: bool, then: Callable[[], None] | None) -> None:
        name = os.path.basename(path)
        self._manifest.settle(name)
        if tag_as_last:
            self.tag_last_checkpoint(name)
        # A run that was not sharded before, or no longer is, has left one of the other kind.
        other = path.removesuffix(".pth") if path.endswith(".pth") else f"{path}.pth"
        is_twin = os.path.exists(other) and os.path.isdir(other) != os.path.isdir(path)
        if is_twin and os.path.basename(other) in self._manifest.records():
            delete_checkpoint(other)
        if then is not None:
            then()

    def _write_or_warn(
        self, write: Callable[[dict[str, Any]], None], path: str, data: dict[str, Any]
    ) -> None:
        try:
            write(data)
        except Exception as error:
            warn_of_failed_save(path, error)
            raise

    def _newest_first(self) -> list[str]:
        """The tagged checkpoint, then the periodic and final ones: first its own run's, by
        iteration. Names in `save_dir`, which other machines may have elsewhere."""
        if not os.path.isdir(self.save_dir) or has_begun_anew(self.save_dir):
            return []
        records = self._manifest.records()
        runs = {name: record.get("run") for name, record in records.items()}
        tagged = self.get_checkpoint_file() if self.has_checkpoint() else ""
        tagged = tagged and os.path.relpath(tagged, self.save_dir)
        run = runs.get(os.path.basename(tagged))
        saved = [
            (runs[name] == run, record["iteration"], name)
            for name, record in records.items()
            if FINAL.fullmatch(name)
            and isinstance(record.get("iteration"), int)
            and os.path.exists(self._manifest.locate(name))
        ]
        saved += [
            (runs.get(name) == run, int(match[1]), name)
            for name in os.listdir(self.save_dir)
            if (match := NUMBERED.fullmatch(name))
            and (match[2] or name in runs or is_listed(os.path.join(self.save_dir, name)))
        ]
        names = [name for *_, name in sorted(saved, reverse=True)]
        return list(dict.fromkeys([tagged, *names] if tagged else names))

    def _go_on_with_run_of(self, path: str) -> None:
        record = self._manifest.records().get(os.path.basename(path))
        if record is None:
            self.logger.warning(
                "%s is not in %s: it was saved by another run or program, and its checksum is "
                "not known",
                path,
                self._manifest.path,
            )
        else:
            self.run = record.get("run", self.run)

    def _tidy_folder(self) -> None:
        """Make the folder, and end what processes that were killed before this one have begun."""
        self.path_manager.mkdirs(self.save_dir)
        self._manifest.finish_renames()
        for path in glob.glob(os.path.join(glob.escape(self.save_dir), "*.tmp")):
            if re.search(r"\.[0-9a-f]{8}\.tmp$", path):
                with suppress(FileNotFoundError):  # it has just taken its name
                    if os.path.getmtime(path) < self._began:
                        delete_checkpoint(path)

    def _read(self, path: str, *, is_joint: bool) -> dict[str, Any]:
        self.wait()
        self._loading = path
        path = path.removesuffix(_HEURISTICS).rstrip("/")
        self.logger.info("Loading %s", path)
        share = slice(comm.get_rank(), None, comm.get_world_size()) if is_joint else slice(None)
        with joint_errors() if is_joint else nullcontext():
            found = self._find_undamaged(path, share)
        with joint_errors() if is_joint else nullcontext():
            return self._load_file(found)

    def _refuse_different(self, path: str) -> None:
        """Raise on all ranks if one of them has another checkpoint than rank 0 under this name."""
        record = self._manifest.records().get(os.path.basename(path), {})
        checksum = record.get("sha256")
        first = comm.all_gather(checksum)[0]
        with joint_errors():
            if checksum != first:
                raise CheckpointError(
                    f"{path} on {socket.gethostname()} is not the checkpoint that rank 0 has under "
                    "that name: the machines of a run must share their OUTPUT_DIR"
                )

    def _apply(
        self, checkpoint: dict[str, Any], checkpointables: list[str] | None
    ) -> dict[str, Any]:
        if (incompatible := self._load_model(checkpoint)) is not None:  # some override it
            self._log_incompatible_keys(incompatible)
        for key in self.checkpointables if checkpointables is None else checkpointables:
            if key in checkpoint:
                state, target = checkpoint.pop(key), self.checkpointables[key]
                if isinstance(target, torch.optim.Optimizer) and self.saves_shards:
                    state = shard_optimizer_state(state, target)
                elif isinstance(target, nn.Module):  # a second model
                    fit_weights(state, target)
                target.load_state_dict(state)
        return checkpoint

    def _find_undamaged(self, path: str, share: slice) -> str:
        """Where a checkpoint is on this machine; of its checksums, a share is compared."""
        folder, name = os.path.split(path)
        if is_listed(folder):
            raise CheckpointError(f"{path} is a part of a checkpoint, which is the folder {folder}")
        manifest = Manifest(folder)
        found = manifest.locate(name)
        # Of a remote path no more is asked of its handler than a local copy.
        local = found if os.path.isdir(found) else self.path_manager.get_local_path(path)
        if not os.path.exists(local):
            where = f"on {socket.gethostname()}, " if comm.get_world_size() > 1 else ""
            raise MissingCheckpointError(
                f"there is no checkpoint {path} ({where}from the folder {os.getcwd()}); check the "
                "path: MODEL.WEIGHTS, or what last_checkpoint names, which all machines must share"
            )
        if damage := manifest.damage(name, share):
            raise CheckpointError(
                f"the checkpoint {path} cannot be loaded: it is damaged ({damage})"
            )
        return local

    def _load_file(self, f: str) -> dict[str, Any]:
        if not os.path.isdir(f):
            return read_file(f)
        weights = self.model.state_dict().values()
        with unreadable_is_refused(f):
            return read_sharded(f, next(filter(is_sharded_tensor, weights), None))

    def _load_model(self, checkpoint: dict[str, Any]) -> _IncompatibleKeys:
        names = list(self.model.state_dict())
        if self._loading.endswith(_HEURISTICS):
            saved = checkpoint["model"]
            matches = match_by_suffix(list(saved), names)
            checkpoint["model"] = {matches.get(name, name): v for name, v in saved.items()}
        shield_own_prefix(checkpoint["model"], names)
        _strip_prefix_if_present(checkpoint["model"], WRAPPER)
        fit_weights(checkpoint["model"], self.model)
        extra = _take_extra_states(checkpoint["model"])
        shield_own_prefix(checkpoint["model"], names)  # fvcore strips once more
        result = super()._load_model(checkpoint)
        plain = plain_names(self.model)
        places = {plain(name): name for name in result.missing_keys}
        for name, value in extra.items():
            if (place := places.get(plain(name))) is None:  # no module has one for it
                result.unexpected_keys.append(name)
                continue
            module = self.model.get_submodule(place.removesuffix(_EXTRA_STATE).rstrip("."))
            module.set_extra_state(value)
            result.missing_keys.remove(place)
        unfit = {*result.missing_keys, *(name for name, *_ in result.incorrect_shapes)}
        weights = {name for name in names if not name.endswith(_EXTRA_STATE)}
        if weights and unfit >= weights:
            raise CheckpointError(
                f"no weight of {self._loading} fits the model: it is of another architecture\n"
                + mismatch_table(result)
            )
        return result

    def _log_incompatible_keys(self, incompatible: _IncompatibleKeys) -> None:
        # A weight with two names is not missing when it was loaded under one of them.
        unloaded = set(_filter_reused_missing_keys(self.model, incompatible.missing_keys))
        missing = [name for name in incompatible.missing_keys if name in unloaded]
        incompatible = incompatible._replace(missing_keys=missing)
        if any(incompatible):
            self.logger.warning(
                "Weights that do not fit; in the model they stay as they are:\n%s",
                mismatch_table(incompatible),
            )


def _take_extra_states(state: dict[str, Any]) -> dict[str, Any]:
    """What `get_extra_state` of modules has returned: fvcore knows only tensors."""
    names = [name for name in state if name.endswith(_EXTRA_STATE)]
    return {name: state.pop(name) for name in names}


def warn_of_failed_save(path: str, error: Exception) -> None:
    """Say that a save failed."""
    logging.getLogger(__name__).warning(
        "%s is not saved (%s: %s). The checkpoint before it is kept.",
        path,
        type(error).__name__,
        error,
    )
