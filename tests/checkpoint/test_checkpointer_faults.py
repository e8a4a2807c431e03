"""What stands on the disk when a write, an fsync or a rename of a save fails, or is the last."""

import errno
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from engine.checkpoint import Checkpointer
from engine.hooks import PeriodicCheckpointer
from engine.utils import files


class Faults:
    """Counts the calls by which a save changes the disk, and has one of them go wrong."""

    def __init__(self, patch) -> None:
        self.calls: list[str] = []
        self.at = -1
        self.act = None
        for owner, name in [
            (os, "fsync"),
            (os, "replace"),
            (os, "remove"),
            (files.RawFile, "write"),
        ]:
            patch.setattr(owner, name, self._wrap(name, getattr(owner, name)))

    def _wrap(self, name, function):
        def call(*args):
            self.calls.append(name)
            if len(self.calls) - 1 == self.at:
                self.act()
            return function(*args)

        return call


def fail() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def die() -> None:
    os._exit(9)


def filled(value: float) -> nn.Module:
    model = nn.Linear(4, 4)
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    return model


def save(folder: Path, iteration: int, name: str) -> None:
    checkpointer = Checkpointer(filled(iteration), folder)
    checkpointer.resume_or_load("")
    checkpointer.model.load_state_dict(filled(iteration).state_dict())
    hook = PeriodicCheckpointer(checkpointer, 10, max_to_keep=1)
    if name == "periodic":
        hook.step(iteration)
    else:
        checkpointer.save(name, iteration=iteration)


def loaded(folder: Path) -> int:
    """The iteration that a run is resumed from; the weights must be of it."""
    model = nn.Linear(4, 4)
    iteration = Checkpointer(model, folder).resume_or_load("")["iteration"]
    values = {value for p in model.parameters() for value in p.flatten().tolist()}
    assert values == {float(iteration)}
    return iteration


def calls_of_a_save(folder: Path, name: str) -> list[str]:
    save(folder, 9, name)
    with pytest.MonkeyPatch.context() as patch:
        faults = Faults(patch)
        save(folder, 19, name)
    return faults.calls


@pytest.mark.parametrize("name", ["periodic", "model_final"])
def test_whatever_call_fails_the_run_can_be_resumed(tmp_path, name):
    calls = calls_of_a_save(tmp_path / "count", name)
    assert {"write", "fsync", "replace"} <= set(calls)
    for number in range(len(calls)):
        folder = tmp_path / str(number)
        save(folder, 9, name)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch)
            faults.at, faults.act = number, fail
            with pytest.raises(OSError, match="No space left on device"):
                save(folder, 19, name)
        assert loaded(folder) in (9, 19)
        assert not list(folder.glob("*.tmp"))
        save(folder, 29, name)  # there is space again
        assert loaded(folder) == 29


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", ["periodic", "model_final"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_whatever_call_is_the_last_before_the_process_dies_the_run_can_be_resumed(tmp_path, name):
    calls = calls_of_a_save(tmp_path / "count", name)
    for number in range(len(calls)):
        folder = tmp_path / str(number)
        save(folder, 9, name)
        child = os.fork()
        if child == 0:
            faults = Faults(pytest.MonkeyPatch())
            faults.at, faults.act = number, die
            save(folder, 19, name)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert loaded(folder) in (9, 19)
        save(folder, 29, name)
        assert loaded(folder) == 29


def test_the_file_and_the_folder_are_on_the_disk_before_the_save_counts(tmp_path):
    calls = calls_of_a_save(tmp_path, "model_0000009")
    # the manifest with both files, the checkpoint, the manifest without the old one, the tag
    assert calls.count("replace") == 4
    for place, call in enumerate(calls):
        if call == "replace":
            assert calls[place - 1] == calls[place + 1] == "fsync"


def test_half_written_files_of_killed_processes_are_cleared_away(tmp_path):
    left = tmp_path / "model_0000009.pth.1a2b3c4d.tmp"
    left.write_bytes(b"half")
    os.utime(left, (1, 1))
    own = tmp_path / "thesis.tmp"
    own.write_bytes(b"mine")
    os.utime(own, (1, 1))
    Checkpointer(nn.Linear(1, 1), tmp_path).save("model")
    assert not left.exists()
    assert own.exists()


@pytest.mark.parametrize("where", ["weights", "optimizer"])
def test_a_state_that_is_not_finite_is_never_saved_over_a_good_one(tmp_path, where):
    model = filled(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    checkpointer = Checkpointer(model, tmp_path, optimizer=optimizer)
    checkpointer.save("model", iteration=1)
    model.weight.grad = torch.full_like(model.weight, torch.nan)
    optimizer.step()
    if where == "optimizer":
        model.load_state_dict(filled(1).state_dict())
    for name in ("model", "model_best", "model_0000009"):
        with pytest.raises(FloatingPointError, match=r"(weight|momentum_buffer'\]) is NaN or inf"):
            checkpointer.save(name, iteration=2)
    assert sorted(os.listdir(tmp_path)) == ["last_checkpoint", "manifest.json", "model.pth"]
    assert loaded(tmp_path) == 1


def test_a_mask_that_is_infinite_from_the_start_may_be_saved(tmp_path):
    model = filled(1)
    model.register_buffer("mask", torch.full((3,), -torch.inf))
    model.frozen_mask = nn.Parameter(torch.full((3,), -torch.inf), requires_grad=False)
    model.register_buffer("mean", torch.zeros(3))
    checkpointer = Checkpointer(model, tmp_path)
    checkpointer.save("model")
    model.mean += torch.nan
    with pytest.raises(FloatingPointError, match="mean is NaN or infinite"):
        checkpointer.save("model")


def test_a_temporary_is_never_left_open(tmp_path):
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for iteration in (9, 19, 29):
        save(tmp_path, iteration, "periodic")
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after == before
