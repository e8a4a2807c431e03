"""What stands on the disk when a save of a folder fails, or is the last thing a process does.

This file is also the program that forks processes and has them die: see `die_at_each_call` and
`kill_at_any_moment`.
"""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from engine.checkpoint import Checkpointer
from engine.hooks import PeriodicCheckpointer
from engine.utils import files

pytestmark = pytest.mark.slow


class Faults:
    """Counts the calls by which a save changes the disk, and has one of them go wrong."""

    def __init__(self, at: int = -1, act: Callable[[], None] | None = None) -> None:
        self.calls: list[str] = []
        self._at, self._act = at, act

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        for owner, name in [
            (os, "fsync"),
            (os, "replace"),
            (os, "rename"),
            (shutil, "rmtree"),
            (files.RawFile, "write"),
        ]:
            patch.setattr(owner, name, self._wrap(name, getattr(owner, name)))

    def _wrap(self, name, function):
        def call(*args, **kwargs):
            self.calls.append(name)
            if len(self.calls) - 1 == self._at and self._act is not None:
                self._act()
            return function(*args, **kwargs)

        return call


def fail() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def filled(value: float) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(4, 4)
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


def save(folder: Path, iteration: int, name: str) -> None:
    checkpointer = Checkpointer(filled(iteration), folder)
    checkpointer.resume_or_load("")
    checkpointer.model.load_state_dict(filled(iteration).state_dict())
    hook = PeriodicCheckpointer(checkpointer, 10, max_to_keep=1)
    if name == "periodic":
        hook.step(iteration)
    else:
        checkpointer.save(name, iteration=iteration)


def loaded(folder: Path, name: str = "") -> float:
    """The value of all weights of a checkpoint; without a name, of the one to resume from."""
    model = nn.Linear(4, 4)
    checkpointer = Checkpointer(model, folder)
    if name:
        checkpointer.load(str(folder / name))
    else:
        checkpointer.resume_or_load("")
    (value,) = set(torch.cat([p.detach().flatten() for p in model.parameters()]).tolist())
    return value


# --- the program -------------------------------------------------------------------------------


def in_a_fork(function: Callable[[], object]) -> int:
    """Call the function in a process with a group of its own; its process id."""
    if child := os.fork():
        return child
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    function()
    os._exit(0)


def save_forever(folder: Path) -> None:
    parent = os.getppid()
    while os.getppid() == parent:  # it may have been killed too
        iteration = int(loaded(folder)) + 1 if (folder / "last_checkpoint").exists() else 1
        checkpointer = Checkpointer(filled(iteration), folder)
        checkpointer.save(f"model_{iteration:07d}", iteration=iteration)
        checkpointer.save("model_best", tag_as_last=False, iteration=iteration)


def kill_at_any_moment(folder: Path, rounds: int) -> list[tuple[float, float]]:
    """After each kill: what a run would resume from, and the best."""
    found: list[tuple[float, float]] = []
    for number in range(rounds):
        child = in_a_fork(lambda: save_forever(folder))
        start = found[-1][0] if found else 0
        while not (folder / f"model_{start + 2:07.0f}").exists():
            time.sleep(0.01)
        time.sleep(random.Random(number).uniform(0, 0.2))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found.append((loaded(folder), loaded(folder, "model_best")))
    return found


def die_at_each_call(folder: Path, name: str) -> list[tuple[float, float]]:
    """For each call of a save that changes the disk: what is there after a death at it, and after
    the next save."""
    found = []
    for number in range(1000):
        here = folder / str(number)

        def die_in_a_save(here: Path = here, number: int = number) -> None:
            save(here, 9, name)
            with pytest.MonkeyPatch.context() as patch:
                Faults(number, lambda: os._exit(9)).patch(patch)
                save(here, 19, name)

        _, status = os.waitpid(in_a_fork(die_in_a_save), 0)
        first = loaded(here)
        os.waitpid(in_a_fork(lambda here=here: save(here, 29, name)), 0)
        found.append((first, loaded(here)))
        assert not list(here.glob("*.tmp"))
        if status == 0:
            return found
    raise AssertionError("it did not get to the end")


def run_this_file(*arguments: str) -> list[tuple[float, float]]:
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=110,
        check=True,
    )
    return [tuple(pair) for pair in json.loads(done.stdout)]


# --- the tests ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["periodic", "model_final"])
def test_whatever_call_fails_the_run_can_be_resumed(tmp_path, one_rank, name):
    save(tmp_path / "count", 9, name)
    with pytest.MonkeyPatch.context() as patch:
        counted = Faults()
        counted.patch(patch)
        save(tmp_path / "count", 19, name)
    assert {"write", "fsync", "replace", "rename", "rmtree"} == set(counted.calls)
    for number in range(len(counted.calls)):
        folder = tmp_path / str(number)
        save(folder, 9, name)
        with pytest.MonkeyPatch.context() as patch:
            Faults(number, fail).patch(patch)
            with pytest.raises(OSError, match="No space left on device"):
                save(folder, 19, name)
        assert loaded(folder) in (9, 19)
        save(folder, 29, name)  # there is space again
        assert loaded(folder) == 29


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", ["periodic", "model_final"])
def test_whatever_call_is_the_last_the_run_can_be_resumed(tmp_path, name):
    found = run_this_file(str(tmp_path), name)
    assert len(found) > 20
    assert {first for first, _ in found} == {9.0, 19.0}
    assert {second for _, second in found} == {29.0}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_whenever_it_is_killed_the_newest_and_the_best_are_whole(tmp_path):
    found = run_this_file(str(tmp_path))
    newest = [resumed for resumed, _ in found]
    assert newest == sorted(set(newest))  # nothing was lost
    for resumed, best in found:
        assert best in (resumed - 1, resumed)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    # All that is loaded and found out at a first save is there before the forks, which are many.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    save(path / "first", 9, "model_final")
    dist.destroy_process_group()
    results = die_at_each_call(path, sys.argv[2]) if sys.argv[2:] else kill_at_any_moment(path, 15)
    print(json.dumps(results))
