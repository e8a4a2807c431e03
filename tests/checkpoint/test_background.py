import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from engine.checkpoint import Checkpointer
from engine.checkpoint.background import BackgroundSaves, StateCopy


class Disk:
    """Keeps what it is given, once it may."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.writing = 0
        self.most_at_once = 0
        self.written: list[float] = []

    def write(self, data) -> None:
        self.writing += 1
        self.most_at_once = max(self.most_at_once, self.writing)
        self.gate.wait(10)
        self.written.append(data["model"]["weight"].item())
        self.writing -= 1


def test_what_is_written_is_the_state_of_the_moment_of_the_save():
    disk, saves, weight = Disk(), BackgroundSaves(), torch.zeros(1)
    for _ in range(2):  # the loop does not wait: the disk has not written anything yet
        saves.submit(disk.write, {"model": {"weight": weight}})
        weight += 1
    disk.gate.set()
    saves.wait()
    assert disk.written == [0.0, 1.0]


def test_saves_are_written_one_after_the_other_and_a_third_waits(log):
    disk, saves, weight = Disk(), BackgroundSaves(), torch.zeros(1)
    threading.Timer(0.8, disk.gate.set).start()
    for _ in range(6):
        saves.submit(disk.write, {"model": {"weight": weight}})
        weight += 1
    saves.wait()
    assert disk.written == [0, 1, 2, 3, 4, 5]
    assert disk.most_at_once == 1
    (warning,) = (record.getMessage() for record in log.records)  # of the one that waited long
    assert "for a save: saves come faster than they can be written" in warning


def test_an_older_save_that_failed_does_not_fail_the_last_one():
    saves = BackgroundSaves()

    def write(data) -> None:
        if data["number"] < 2:
            raise data["error"]

    def save_all(error) -> None:
        for number in (1, 2):
            saves.submit(lambda data, n=number: write({"number": n, "error": error}), {})
        saves.wait()

    save_all(OSError("the disk is full"))
    with pytest.raises(TypeError, match="a mistake"):
        save_all(TypeError("a mistake"))
    saves.submit(lambda data: write({"number": 0, "error": OSError("the disk is full")}), {})
    with pytest.raises(OSError, match="the disk is full"):
        saves.wait()


def test_memory_is_used_again():
    copy, weight = StateCopy(), torch.arange(6.0).reshape(2, 3).t()
    first = copy.take({"model": {"weight": weight, "step": 1}})
    assert first["model"]["weight"].data_ptr() != weight.data_ptr()
    weight += 1
    second = copy.take({"model": {"weight": weight, "step": 2}})
    assert second["model"]["weight"].data_ptr() == first["model"]["weight"].data_ptr()
    assert torch.equal(second["model"]["weight"], weight)
    larger = copy.take({"model": {"weight": torch.ones(9)}})
    assert torch.equal(larger["model"]["weight"], torch.ones(9))


def test_weights_that_share_memory_are_copied_once():
    weight = nn.Parameter(torch.ones(3))
    data = StateCopy().take({"model": {"a": weight, "b": weight, "part": weight[:2]}})
    assert data["model"]["a"] is data["model"]["b"]
    assert data["model"]["part"].tolist() == [1, 1]


def test_a_state_is_copied_bit_by_bit_whatever_its_type():
    state = {
        "half": torch.tensor([1.5, float("nan"), -0.0], dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(3),
        "sparse": torch.eye(3).to_sparse(),
        "list": [torch.ones(1), (2, "text")],
    }
    data = StateCopy().take(state)
    assert data["half"].view(torch.int16).tolist() == state["half"].view(torch.int16).tolist()
    assert data["flags"].tolist() == [True, False]
    assert data["empty"].shape == (0, 4)
    assert data["scalar"].item() == 3
    assert torch.equal(data["sparse"].to_dense(), torch.eye(3))
    assert data["list"] == [torch.ones(1), (2, "text")]


class Copies(TorchDispatchMode):
    """Notes which copies the caller was told to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.non_blocking: list[bool] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default:
            self.non_blocking.append(any(args[2:]))
        return func(*args, **(kwargs or {}))


def test_a_copy_is_complete_at_once_where_none_is_waited_for():
    with Copies() as copies:
        StateCopy().take({"model": {"weight": torch.ones(3)}})
    assert copies.non_blocking == [False]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices of CUDA")
def test_copies_from_all_devices_are_complete():
    state = {f"cuda:{n}": torch.ones(1 << 26, device=f"cuda:{n}") for n in range(2)}
    for tensor in state.values():
        for _ in range(100):
            tensor.mul_(2).div_(2)  # work that is under way when the copy begins
        tensor.add_(1)
    data = StateCopy().take(state)
    assert all(tensor.eq(2).all() for tensor in data.values())


def test_a_full_disk_is_a_warning_now_and_an_error_for_who_waits(tmp_path, log, monkeypatch):
    def full(data, file) -> None:
        raise OSError(28, "No space left on device")

    checkpointer = Checkpointer(nn.Linear(1, 1), tmp_path, background=True)
    monkeypatch.setattr(torch, "save", full)
    checkpointer.save("model_0000009")
    with pytest.raises(OSError, match="No space left"):
        checkpointer.wait()
    checkpointer.save("model_0000019")
    monkeypatch.undo()
    time.sleep(0.1)
    checkpointer.save("model_0000029")  # the next one works, and nothing was raised in between
    checkpointer.wait()
    assert "model_0000009.pth is not saved (OSError: [Errno 28] No space left" in log.text
    assert checkpointer.get_checkpoint_file().endswith("model_0000029.pth")


def test_a_mistake_in_the_program_comes_out_at_the_next_save(tmp_path, monkeypatch):
    def broken(data, file) -> None:
        raise RuntimeError("a mistake")

    def save_for_long() -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            checkpointer.save("model")

    checkpointer = Checkpointer(nn.Linear(1, 1), tmp_path, background=True)
    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(RuntimeError, match="a mistake"):
        save_for_long()


@pytest.mark.parametrize("end", ["", "raise RuntimeError('late')", "sys.exit(3)"])
def test_the_process_does_not_end_before_all_is_written(tmp_path, end):
    script = f"""
import sys, torch
from engine.checkpoint import Checkpointer
checkpointer = Checkpointer(torch.nn.Linear(2000, 2000), {str(tmp_path)!r}, background=True)
checkpointer.save("a")
checkpointer.save("b", iteration=7)
{end}
"""
    subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert Checkpointer(nn.Linear(2000, 2000), tmp_path).resume_or_load("")["iteration"] == 7
