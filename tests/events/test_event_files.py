from pathlib import Path
from shutil import disk_usage

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from torch.utils.tensorboard import SummaryWriter

from engine.events import EventStorage, TensorboardXWriter
from engine.events.event_files import event_files, new_event_file

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
    assert len(event_files(str(folder))[0]) == 1
    train(folder, 2, 4)
    assert [step for step, _ in curve(folder)] == [0, 1, 2, 3]


def test_what_follows_a_damaged_record_is_cut_as_no_reader_gets_there(tmp_path):
    train(tmp_path, 0, 4)
    (path,) = map(Path, event_files(str(tmp_path))[0])
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


def shown(folder: Path, tag: str) -> list[int]:
    """The steps that TensorBoard shows of a scalar."""
    return [event.step for event in EventAccumulator(str(folder)).Reload().Scalars(tag)]


def test_curves_of_others_in_the_folder_are_not_hidden(tmp_path):
    with SummaryWriter(str(tmp_path)) as other, EventStorage() as storage:
        writer = TensorboardXWriter(str(tmp_path))
        writer.rewind(0)
        for storage.iter in range(10):
            other.add_scalar("theirs", 1.0, storage.iter)
            storage.put_scalar("ours", 1.0)
            writer.write()
        writer.close()
    assert shown(tmp_path, "theirs") == shown(tmp_path, "ours") == list(range(10))


def test_two_writers_in_one_folder_do_not_hide_each_others_curves(tmp_path):
    for start, end in [(0, 6), (4, 10)]:
        writers = {name: TensorboardXWriter(str(tmp_path)) for name in ("first", "second")}
        for writer in writers.values():
            writer.rewind(start)
        for name, writer in writers.items():
            with EventStorage(start) as storage:
                for storage.iter in range(start, end):
                    storage.put_scalar(name, 1.0)
                    writer.write()
        for writer in writers.values():
            writer.close()
        assert shown(tmp_path, "first") == shown(tmp_path, "second") == list(range(end))


def test_a_summary_writer_made_in_the_same_second_has_a_file_of_its_own(tmp_path):
    writer = TensorboardXWriter(str(tmp_path))
    with EventStorage() as storage:
        storage.put_scalar("ours", 1.0)
        writer.write()
        writer._writer.add_scalar("theirs", 1.0, 0)
        storage.step()
        storage.put_scalar("ours", 1.0)
        writer.write()
    writer.close()
    assert shown(tmp_path, "ours") == [0, 1]
    assert shown(tmp_path, "theirs") == [0]


def test_it_is_put_back_to_where_it_stood_whatever_the_iterations_are(tmp_path):
    def write(writer: TensorboardXWriter, iterations: range) -> None:
        with EventStorage() as storage:
            for storage.iter in iterations:
                storage.put_scalar("loss", 1.0)
                storage.put_scalar("by_sample", 1.0, cur_iter=64 * storage.iter)
                writer.write()

    writer = TensorboardXWriter(str(tmp_path))
    write(writer, range(5))
    state = writer.state_dict()
    write(writer, range(5, 8))
    writer.close()
    resumed = TensorboardXWriter(str(tmp_path))
    assert resumed.restore(state, 5)
    write(resumed, range(5, 6))
    resumed.close()
    later = TensorboardXWriter(str(tmp_path))
    assert later.restore(state, 5)  # the file of the second run goes too
    write(later, range(5, 7))
    later.close()
    found = everything(tmp_path)
    assert [event.step for event in found.Scalars("loss")] == list(range(7))
    assert [event.step for event in found.Scalars("by_sample")] == [64 * i for i in range(7)]


def test_a_folder_that_does_not_hold_what_it_did_cannot_be_put_back(tmp_path):
    writer = TensorboardXWriter(str(tmp_path))
    assert not writer.restore({"sizes": {"events.out.tfevents.1": 10}}, 5)


def test_where_a_tracker_listens_to_summary_writers_one_is_used(tmp_path, monkeypatch):
    """As with wandb.init(sync_tensorboard=True)."""
    from torch.utils.tensorboard import writer as torchs

    heard = []

    class Listening(torchs.EventFileWriter):
        def __init__(self, folder, *args, **kwargs):
            heard.append(folder)
            super().__init__(folder, *args, **kwargs)

    monkeypatch.setattr(torchs, "EventFileWriter", Listening)
    train(tmp_path, 0, 3)
    assert heard == [str(tmp_path)]
    assert shown(tmp_path, "loss") == [0, 1, 2]
