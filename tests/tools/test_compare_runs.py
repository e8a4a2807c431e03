import json
import runpy
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from engine.checkpoint import Checkpointer
from engine.events import EventStorage, TensorboardXWriter

TOOL = Path(__file__).parents[2] / "tools" / "compare_runs.py"
compare_runs = runpy.run_path(str(TOOL), run_name="compare_runs")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]), []),
        (torch.tensor([1.0, 2.0]), torch.tensor([-1.0, 2.0]), [("", 1)]),
        (torch.zeros(2).bfloat16(), -torch.zeros(2).bfloat16(), [("", 2)]),
        (torch.tensor(float("nan")), torch.tensor(float("nan")), []),
        (1.0, -1.0, [(" (1.0 and -1.0)", 1)]),
        ({"a": [1, "x"]}, {"a": [1, "y"]}, [("/a/1 ('x' and 'y')", 1)]),
        ({"a": [1]}, {"a": [1, 2]}, [("/a (1 and 2 values)", 1)]),
        ({"a": None}, {"a": None, "b": 1}, [("/b (None and 1)", 1)]),
        ({"time": 1.0, "rank_data_time": 1.0}, {"eta_seconds": 2.0}, []),
        ({"beta": 1.0}, {"beta": 1.0, "runtime": 1}, [("/runtime (None and 1)", 1)]),
    ],
)
def test_differences_are_counted_in_bits_and_times_are_left_out(one, other, expected):
    assert list(compare_runs["differences"](one, other, "")) == expected


def test_tensors_of_another_shape_or_type_differ():
    for other in (torch.zeros(3), torch.zeros(2, dtype=torch.int32)):
        ((text, bits),) = compare_runs["differences"]({"w": torch.zeros(2)}, {"w": other}, "")
        assert bits == 1
        assert "(2,)" in text


@pytest.fixture
def folders(tmp_path):
    """What a run leaves, twice."""
    first, second = tmp_path / "first", tmp_path / "second"
    writer = TensorboardXWriter(str(first))
    with EventStorage() as storage:
        for storage.iter in (4, 9):
            storage.put_scalars(loss=1 / storage.iter, time=0.1, smoothing_hint=False)
            writer.write()
    writer.close()
    lines = [{"iteration": at, "loss": 1 / at, "time": 0.1} for at in (4, 9)]
    (first / "metrics.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (first / "results.json").write_text('{"test": {"accuracy": 97.5}}')
    torch.save({"model": {"w": torch.ones(2)}, "iteration": 9}, first / "model_final.pth")
    shutil.copytree(first, second)
    return first, second


@pytest.fixture
def sharded(tmp_path):
    """Folders of two runs, each with a sharded checkpoint of a weight that is 1."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    folders = tmp_path / "first", tmp_path / "second"
    for folder in folders:
        Checkpointer(model, folder).save("model_final")
        (folder / "metrics.json").touch()
    yield folders, model
    dist.destroy_process_group()


def test_folders_of_shards_are_compared_too(sharded):
    folders, model = sharded
    assert compare_runs["Comparison"](*folders).counts == {}
    with torch.no_grad():
        model.weight.neg_()
    Checkpointer(model, folders[1]).save("model_final")
    Checkpointer(model, folders[1]).save("model_best")
    counts = compare_runs["Comparison"](*folders).counts
    assert counts == {"bits that differ": 2, "checkpoints missing or left over": 1}


def test_equal_folders_have_no_differences(folders):
    assert compare_runs["Comparison"](*folders).counts == {}


def test_a_run_with_nan_does_not_differ_from_itself(folders):
    first, second = folders
    writer = TensorboardXWriter(str(first))
    with EventStorage(14) as storage:
        storage.put_scalars(loss=float("nan"), accuracy=-0.0, smoothing_hint=False)
        writer.write()
    writer.close()
    assert compare_runs["Comparison"](first, first).counts == {}
    assert compare_runs["Comparison"](first, second).notes["TensorBoard points missing"] == [
        "loss = nan at 14",
        "accuracy = -0.0 at 14",
    ]


def test_what_differs_is_counted_and_named(folders):
    first, second = folders
    torch.save({"model": {"w": -torch.ones(2)}, "iteration": 9}, second / "model_final.pth")
    torch.save({}, second / "model_best.pth")
    (second / "model_final.pth.0123abcd.tmp").write_bytes(b"half")
    (second / "results.json").unlink()
    lines = (first / "metrics.json").read_text().splitlines()
    changed = lines[0].replace("0.25", "0.75").replace("0.1", "0.2")
    (second / "metrics.json").write_text("\n".join([changed, changed]) + "\n")
    found = compare_runs["Comparison"](first, second)
    assert found.counts == {
        "bits that differ": 2,
        "checkpoints missing or left over": 1,
        "half-written files left over": 1,
        "iterations missing": 1,
        "iterations doubled": 1,
        "metric values that differ": 2,
    }
    assert found.notes["bits that differ"] == ["2 in model_final.pth/model/w"]
    assert found.notes["iterations missing"] == ["9"]


def test_what_only_the_second_run_has_is_left_over(folders):
    first, second = folders
    with (second / "metrics.json").open("a") as file:
        file.write('{"iteration": 14, "loss": 0.5}\n')
    writer = TensorboardXWriter(str(second))
    with EventStorage(14) as storage:
        storage.put_scalars(loss=0.5, smoothing_hint=False)
        writer.write()
    writer.close()
    assert compare_runs["Comparison"](first, second).notes == {
        "iterations left over": ["14"],
        "TensorBoard points left over": ["loss = 0.5 at 14"],
    }


def test_points_that_tensorboard_shows_twice_or_not_at_all_are_found(folders):
    first, second = folders
    writer = TensorboardXWriter(str(second))
    with EventStorage(4) as storage:
        storage.put_scalars(loss=0.25, time=9.0, smoothing_hint=False)
        writer.write()
    writer.close()
    assert compare_runs["Comparison"](first, second).counts == {"TensorBoard points doubled": 1}
    for path in second.glob("events*"):
        path.unlink()
    assert compare_runs["Comparison"](first, second).counts == {"TensorBoard points missing": 2}


def test_two_folders_are_compared_on_the_command_line(run_tool, folders, capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            run_tool("compare_runs.py", *arguments)
        return ended.value.code, capsys.readouterr().out

    first, second = folders
    assert run(first, second) == (0, "nothing differs\n")
    (second / "metrics.json").unlink()
    assert run(first, second) == (1, "  2 iterations missing:\n    4\n    9\n")
    assert run(first, second / "none") == (2, "")


def test_what_cannot_be_read_is_named(run_tool, folders, tmp_path, capsys):
    first, second = folders
    nowhere, empty = tmp_path / "nowhere", tmp_path / "empty"
    empty.mkdir()

    def error(other):
        with pytest.raises(SystemExit) as ended:
            run_tool("compare_runs.py", first, other)
        output, errors = capsys.readouterr()
        assert (ended.value.code, output, errors.count("\n")) == (2, "", 1)
        return errors

    assert error(nowhere) == f"there is no folder {nowhere}\n"
    assert error(empty).startswith(f"{empty} holds no run")
    (second / "metrics.json").write_text('{"iteration": 4}\n{"loss": 1.0}\n')
    assert error(second).startswith(f"{second / 'metrics.json'}: a line has no iteration")
    (second / "metrics.json").write_bytes(b"\x80\n")
    assert str(second / "metrics.json") in error(second)
    (second / "results.json").write_text("")
    (second / "metrics.json").write_text('{"iteration": 4}\n{"iter')  # being written
    assert str(second / "results.json") in error(second)
