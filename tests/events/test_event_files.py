from pathlib import Path
from shutil import disk_usage

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from torch.utils.tensorboard import SummaryWriter

from engine.events import EventStorage, TensorboardXWriter
from engine.events.event_files import new_event_file, own_event_files

PICTURE = torch.zeros(3, 4, 4)


def train(folder: Path, start: int, end: int, storage: EventStorage | None = None) -> None:
    """Each iteration has a scalar whose value tells which run it is of, a picture, a histogram."""
    writer = TensorboardXWriter(str(folder))
    writer.rewind(start)
    with storage or EventStorage(start) as storage:
        for storage.iter in range(start, end):
            storage.put_scalar("loss", storage.iter + start / 128, smoothing_hint=False)
            storage.put_image("cat", PICTURE)
            storage.put_histogram("weights", torch.randn(5), bins=3)
            writer.write()
    writer.close()


def everything(folder: Path) -> EventAccumulator:
    """What the files hold, whatever TensorBoard would hide of it."""
    guidance = {"scalars": 0, "images": 0, "histograms": 0}
    return EventAccumulator(str(folder), guidance, purge_orphaned_data=False).Reload()


def curve(folder: Path) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in everything(folder).Scalars("loss")]


def test_a_resumed_run_leaves_each_point_once_for_every_reader(tmp_path):
    for start, end in [(0, 10), (6, 9), (3, 7), (7, 8)]:
        train(tmp_path, start, end)
    runs = [0, 0, 0, 3, 3, 3, 3, 7]
    assert curve(tmp_path) == [(step, step + run / 128) for step, run in enumerate(runs)]
    found = everything(tmp_path)
    assert [event.step for event in found.Images("cat")] == list(range(8))
    assert [event.step for event in found.Histograms("weights")] == list(range(8))


def test_wherever_a_kill_cuts_the_file_the_resumed_run_has_all_points_once(tmp_path):
    """In the head, and in the records of scalars, images and histograms."""
    train(tmp_path / "whole", 0, 2)
    (whole,) = (tmp_path / "whole").iterdir()
    data = whole.read_bytes()
    for size in range(0, len(data), 5):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / whole.name).write_bytes(data[:size])
        has_points = "loss" in everything(folder).Tags()["scalars"]
        train(folder, len(curve(folder)) if has_points else 0, 3)
        found = everything(folder)
        for events in found.Scalars("loss"), found.Images("cat"), found.Histograms("weights"):
            assert [event.step for event in events] == [0, 1, 2]


def test_a_value_written_after_its_checkpoint_is_not_written_again_by_the_resumed_run(tmp_path):
    """`acc` of iteration 2 is in the checkpoint of 3, and in what was written at 4."""
    writer = TensorboardXWriter(str(tmp_path))
    with EventStorage() as storage:
        for storage.iter in range(5):
            storage.put_scalar("loss", storage.iter, smoothing_hint=False)
            if storage.iter == 2:
                storage.put_scalar("acc", 0.5)
            if storage.iter == 3:
                checkpoint = storage.state_dict()
        writer.write()
    writer.close()
    for _ in range(2):
        resumed = EventStorage(4)
        resumed.load_state_dict(checkpoint)
        train(tmp_path, 4, 6, resumed)
    assert [event.step for event in everything(tmp_path).Scalars("acc")] == [2]
    assert [step for step, _ in curve(tmp_path)] == [4, 5]


def test_a_value_that_a_killed_run_never_wrote_is_written_by_the_resumed_one(tmp_path):
    storage = EventStorage()
    storage.put_scalar("acc", 0.5)
    resumed = EventStorage(4)
    resumed.load_state_dict(storage.state_dict())
    train(tmp_path, 4, 5, resumed)
    assert [event.step for event in everything(tmp_path).Scalars("acc")] == [0]


def test_a_run_from_the_start_keeps_the_old_one_aside_as_another_run(tmp_path):
    train(tmp_path, 0, 3)
    train(tmp_path, 3, 8)
    train(tmp_path, 0, 4)
    train(tmp_path, 0, 2)
    assert [step for step, _ in curve(tmp_path)] == [0, 1]
    assert [step for step, _ in curve(tmp_path / "earlier.1")] == list(range(8))
    assert [step for step, _ in curve(tmp_path / "earlier.2")] == [0, 1, 2, 3]
    assert sorted(folder.name for folder in tmp_path.iterdir() if folder.is_dir()) == [
        "earlier.1",
        "earlier.2",
    ]


@pytest.mark.parametrize("reader", ["library", "program"])
def test_a_tensorboard_that_is_open_all_the_time_shows_one_curve(tmp_path, reader):
    library = EventAccumulator(str(tmp_path), {"scalars": 0})
    program = EventMultiplexer()

    def steps() -> list[int]:
        if reader == "library":
            return [event.step for event in library.Reload().Scalars("loss")]
        program.AddRunsFromDirectory(str(tmp_path)).Reload()
        return [event.step for event in program.Tensors(".", "loss")]

    for start, end in [(0, 8), (5, 6), (6, 12), (0, 3), (2, 5)]:
        train(tmp_path, start, end)
        assert steps() == list(range(end))


def test_files_of_other_programs_are_let_be(tmp_path):
    with SummaryWriter(str(tmp_path)) as other:
        for step in range(20):
            other.add_scalar("theirs", step, step)
    (theirs,) = tmp_path.iterdir()
    data = theirs.read_bytes()
    for start, end in [(0, 5), (3, 5), (0, 5)]:
        train(tmp_path, start, end)
    assert theirs.read_bytes() == data
    assert [event.step for event in everything(tmp_path).Scalars("theirs")] == list(range(20))
    assert theirs.name not in [path.name for path in (tmp_path / "earlier.1").iterdir()]


def test_a_new_file_sorts_after_all_others_also_where_the_clock_was_set_back(tmp_path):
    names = []
    for seconds in (0, 10, 5_000_000_000):
        (tmp_path / f"events.out.tfevents.{seconds:010d}.other.1.0").touch()
        names.append(Path(new_event_file(str(tmp_path))).name)
        (tmp_path / names[-1]).touch()
    assert names == sorted(names)
    assert names[-1] == max(path.name for path in tmp_path.iterdir())


def test_a_folder_of_any_name_is_found_again(tmp_path):
    folder = tmp_path / "lr=[0.1]*"
    train(folder, 0, 4)
    assert len(own_event_files(str(folder))) == 1
    train(folder, 2, 4)
    assert [step for step, _ in curve(folder)] == [0, 1, 2, 3]


def test_what_follows_a_damaged_record_is_cut_as_no_reader_gets_there(tmp_path):
    train(tmp_path, 0, 4)
    (path,) = map(Path, own_event_files(str(tmp_path)))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    reached = len(curve(tmp_path))
    assert reached < 4
    train(tmp_path, reached, 6)
    assert [step for step, _ in curve(tmp_path)] == list(range(6))


def test_rewinding_needs_no_space(small_disk):
    train(small_disk, 0, 5)
    (small_disk / "others").write_bytes(bytes(disk_usage(small_disk).free))
    TensorboardXWriter(str(small_disk)).rewind(3)
    assert [step for step, _ in curve(small_disk)] == [0, 1, 2]
