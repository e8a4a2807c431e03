import io
import json
import math
import time
from pathlib import Path
from shutil import disk_usage

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from engine.events import EventStorage, JSONWriter, TensorboardXWriter


def event_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*tfevents*")) if folder.exists() else []


def shown(folder: Path) -> EventAccumulator:
    """What TensorBoard shows of the folder: all of it, in the order of the files' names."""
    accumulator = EventAccumulator(
        str(folder), size_guidance={"scalars": 0, "images": 0, "histograms": 0}
    )
    return accumulator.Reload()


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in shown(folder).Scalars(name)]


def train(folder: Path, start: int, end: int, writer: TensorboardXWriter | None = None) -> None:
    writer = writer or TensorboardXWriter(str(folder))
    writer.rewind(start)
    with EventStorage(start) as storage:
        for storage.iter in range(start, end):
            # The value tells which run it is of.
            storage.put_scalar("loss", storage.iter + start / 128, smoothing_hint=False)
            writer.write()
    writer.close()


def test_scalars_are_there_by_name_and_iteration(tmp_path):
    writer = TensorboardXWriter(str(tmp_path))
    with EventStorage() as storage:
        for storage.iter in range(40):
            storage.put_scalar("loss", storage.iter)
            storage.put_scalar("lr", 0.5, smoothing_hint=False)
            if storage.iter == 25:
                storage.put_scalar("val/acc", 0.75)
            if storage.iter % 20 == 19:
                writer.write()
    writer.close()
    assert sorted(shown(tmp_path).Tags()["scalars"]) == ["loss", "lr", "val/acc"]
    assert curve(tmp_path, "loss") == [(19, 9.5), (39, 29.5)]
    assert curve(tmp_path, "lr") == [(19, 0.5), (39, 0.5)]
    assert curve(tmp_path, "val/acc") == [(25, 0.75)]


def test_values_are_medians_over_its_window(tmp_path):
    writer = TensorboardXWriter(str(tmp_path), window_size=3)
    with EventStorage() as storage:
        for storage.iter in range(40):
            storage.put_scalar("loss", storage.iter)
        writer.write()
    writer.close()
    assert curve(tmp_path, "loss") == [(39, 38.0)]


def test_a_writer_that_wrote_nothing_leaves_no_file(tmp_path):
    folder = tmp_path / "run"
    writer = TensorboardXWriter(str(folder))
    writer.rewind(0)
    with EventStorage():
        writer.write()
    writer.close()
    assert not folder.exists()


def test_a_value_put_after_a_write_in_the_same_iteration_is_in_the_next(tmp_path):
    writer = TensorboardXWriter(tmp_path)
    with EventStorage() as storage:
        storage.put_scalar("loss", 1.0)
        writer.write()
        storage.put_scalar("late", 2.0)
        writer.write()
        writer.write()
    writer.close()
    assert curve(tmp_path, "loss") == [(0, 1.0)]
    assert curve(tmp_path, "late") == [(0, 2.0)]


def test_nan_infinity_and_numbers_too_large_for_its_format_are_kept(tmp_path):
    writer = TensorboardXWriter(str(tmp_path))
    with EventStorage() as storage:
        storage.put_scalars(a=math.nan, b=math.inf, c=-math.inf, d=1e300)
        writer.write()
    writer.close()
    assert math.isnan(curve(tmp_path, "a")[0][1])
    assert [curve(tmp_path, name)[0][1] for name in "bcd"] == [math.inf, -math.inf, math.inf]


PICTURE = (torch.arange(3 * 6 * 5, dtype=torch.uint8) * 2).reshape(3, 6, 5)


@pytest.mark.parametrize(
    "image",
    [
        PICTURE,
        PICTURE / 255,
        PICTURE.float(),
        PICTURE.permute(1, 2, 0),
        PICTURE.permute(1, 2, 0) / 255,
        PICTURE.permute(1, 2, 0).float().numpy(),
    ],
    ids=["CHW", "CHW [0,1]", "CHW [0,255]", "HWC", "HWC [0,1]", "HWC [0,255] numpy"],
)
def test_an_image_is_shown_as_it_is_however_it_was_put(tmp_path, image):
    writer = TensorboardXWriter(str(tmp_path))
    with EventStorage(7) as storage, storage.name_scope("val"):
        storage.put_image("cat", image)
        writer.write()
    writer.close()
    (event,) = shown(tmp_path).Images("val/cat")
    pixels = np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))
    assert (event.step, event.height, event.width) == (7, 6, 5)
    assert np.array_equal(pixels, PICTURE.permute(1, 2, 0))


@pytest.mark.parametrize(("channels", "mode"), [(1, "RGB"), (3, "RGB"), (4, "RGBA")])
def test_grey_and_transparent_images_can_be_shown(tmp_path, channels, mode):
    writer = TensorboardXWriter(str(tmp_path))
    with EventStorage() as storage:
        storage.put_image("cat", torch.full((channels, 4, 5), 0.2))
        writer.write()
    writer.close()
    (event,) = shown(tmp_path).Images("cat")
    image = Image.open(io.BytesIO(event.encoded_image_string))
    assert image.mode == mode
    assert np.unique(np.asarray(image)).tolist() == [51]


@pytest.mark.parametrize(
    "values",
    [
        torch.arange(20.0).reshape(4, 5),
        torch.arange(20).reshape(4, 5),
        torch.cat([torch.arange(20.0), torch.tensor([math.nan, math.inf])]),
    ],
    ids=["floats", "integers", "with NaN and infinity"],
)
def test_a_histogram_has_all_its_elements(tmp_path, values):
    writer = TensorboardXWriter(str(tmp_path))
    with EventStorage(7) as storage:
        storage.put_histogram("weights", values, bins=5)
        writer.write()
    writer.close()
    (event,) = shown(tmp_path).Histograms("weights")
    found = event.histogram_value
    assert (event.step, found.min, found.max, found.num, found.sum) == (7, 0.0, 19.0, 20.0, 190.0)
    assert sum(found.bucket) == 20.0


@pytest.mark.parametrize("values", [torch.full((3,), math.nan), torch.full((3,), 1e30)])
def test_a_histogram_of_nothing_finite_or_of_one_value_can_be_written(tmp_path, values):
    writer = TensorboardXWriter(str(tmp_path))
    with EventStorage() as storage:
        storage.put_histogram("weights", values)
        writer.write()
    writer.close()
    (event,) = shown(tmp_path).Histograms("weights")
    assert event.histogram_value.num == values.isfinite().sum()


def test_images_and_histograms_reach_every_writer_once(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    writers = [TensorboardXWriter(str(folder)) for folder in folders]
    writers.append(JSONWriter(str(tmp_path / "metrics.json")))
    with EventStorage() as storage:
        for storage.iter in range(3):
            storage.put_image("cat", PICTURE)
            storage.put_histogram("weights", torch.randn(5))
            storage.put_scalar("loss", 1.0)
            for writer in writers:
                writer.write()
    for writer in writers:
        writer.close()
    for folder in folders:
        assert [event.step for event in shown(folder).Images("cat")] == [0, 1, 2]
        assert [event.step for event in shown(folder).Histograms("weights")] == [0, 1, 2]
        assert [step for step, _ in curve(folder, "loss")] == [0, 1, 2]


def test_what_was_written_is_in_the_file_without_waiting_for_the_close(tmp_path):
    writer = TensorboardXWriter(str(tmp_path))
    with EventStorage() as storage:
        storage.put_scalar("loss", 1.0)
        writer.write()
        assert curve(tmp_path, "loss") == [(0, 1.0)]
    writer.close()


def test_what_was_written_is_in_the_file_after_close_and_writing_can_go_on(tmp_path):
    writer = TensorboardXWriter(str(tmp_path))
    with EventStorage() as storage:
        for storage.iter in range(2):
            storage.put_scalar("loss", 1.0)
            writer.write()
            writer.close()
            writer.close()
            assert [step for step, _ in curve(tmp_path, "loss")] == list(range(storage.iter + 1))


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_the_options_are_those_of_a_summary_writer(tmp_path, scheme):
    log_dir = f"{scheme}{tmp_path}"
    writer = TensorboardXWriter(log_dir, filename_suffix=".mine", flush_secs=1, purge_step=2)
    with EventStorage() as storage:
        storage.put_scalar("loss", 1.0)
        writer.write()
    writer.close()
    assert curve(log_dir, "loss") == [(0, 1.0)]
    if not scheme:
        assert event_files(tmp_path)[0].suffix == ".mine"
    with pytest.raises(TypeError, match="filename_sufix"):
        TensorboardXWriter(log_dir, filename_sufix=".mine")


# --- resume -------------------------------------------------------------------------------------


def test_a_resumed_run_shows_one_curve(tmp_path):
    train(tmp_path, 0, 8)
    train(tmp_path, 5, 12)
    first = [(step, step) for step in range(5)]
    assert curve(tmp_path, "loss") == first + [(step, step + 5 / 128) for step in range(5, 12)]


def test_the_same_writer_can_be_rewound(tmp_path):
    writer = TensorboardXWriter(str(tmp_path))
    train(tmp_path, 0, 8, writer)
    train(tmp_path, 5, 9, writer)
    assert [step for step, _ in curve(tmp_path, "loss")] == list(range(9))


def test_a_writer_closed_and_written_to_again_hides_nothing_more(tmp_path):
    """What a rewind hides is hidden once, not again when the file is reopened later."""
    writer = TensorboardXWriter(str(tmp_path))
    train(tmp_path, 0, 8, writer)
    train(tmp_path, 5, 9, writer)
    with EventStorage(9) as storage:
        storage.put_scalar("loss", 0.0)
        writer.write()
    writer.close()
    assert [step for step, _ in curve(tmp_path, "loss")] == list(range(10))


def test_a_value_of_an_earlier_iteration_hides_nothing(tmp_path):
    writer = TensorboardXWriter(str(tmp_path))
    with EventStorage(50) as storage:
        storage.put_scalar("loss", 1.0)
        writer.write()
        storage.put_scalar("late", 2.0, cur_iter=10)
        writer.write()
    writer.close()
    assert curve(tmp_path, "loss") == [(50, 1.0)]
    assert curve(tmp_path, "late") == [(10, 2.0)]


def test_events_have_the_time_they_were_written_at(tmp_path):
    before = time.time()
    train(tmp_path, 0, 1)
    assert before <= shown(tmp_path).Scalars("loss")[0].wall_time <= time.time()


# --- where the file is --------------------------------------------------------------------------


def write_everything(log_dir: str) -> None:
    writer = TensorboardXWriter(log_dir)
    with EventStorage() as storage:
        for storage.iter in range(20):
            storage.put_scalars(loss=storage.iter, **{f"metric{i}": 0.5 for i in range(300)})
            storage.put_image("cat", PICTURE)
            storage.put_histogram("weights", torch.randn(5))
            writer.write()
    writer.close()


def all_steps(folder: str) -> list[list[int]]:
    found = shown(folder)
    events = [found.Scalars("loss"), found.Scalars("metric299"), found.Images("cat")]
    events.append(found.Histograms("weights"))
    return [[event.step for event in one] for one in events]


def test_scalars_images_and_histograms_in_one_file_do_not_disturb_each_other(tmp_path):
    write_everything(str(tmp_path))
    assert len(event_files(tmp_path)) == 1
    assert all_steps(tmp_path) == [list(range(20))] * 4


def test_a_folder_that_only_tensorboard_can_reach_works_too():
    write_everything("memory://run")  # by fsspec, as s3:// and others
    assert all_steps("memory://run") == [list(range(20))] * 4


def test_where_only_tensorboard_can_reach_it_hides_what_a_resumed_run_writes_again():
    train("memory://resumed", 0, 8)
    time.sleep(1.01)  # its file names have seconds
    train("memory://resumed", 5, 12)
    assert [step for step, _ in curve("memory://resumed", "loss")] == list(range(12))


# --- a full disk --------------------------------------------------------------------------------


def test_what_a_full_disk_did_not_take_is_there_later_once_and_in_order(small_disk, log):
    writer = TensorboardXWriter(str(small_disk))
    writer.rewind(0)
    with EventStorage() as storage:
        for storage.iter in range(20):
            if storage.iter == 5:
                (small_disk / "others").write_bytes(bytes(disk_usage(small_disk).free))
            if storage.iter == 15:
                (small_disk / "others").unlink()
            storage.put_scalar("loss", storage.iter, smoothing_hint=False)
            storage.put_image("cat", torch.randint(256, (3, 32, 32)).to(torch.uint8))
            storage.put_histogram("weights", torch.randn(500), bins=100)
            writer.write()
            found = len(shown(small_disk).Scalars("loss"))  # whole records only, at any time
            assert found == storage.iter + 1 or 5 <= storage.iter < 15
    writer.close()
    found = shown(small_disk)
    for events in found.Scalars("loss"), found.Images("cat"), found.Histograms("weights"):
        assert [event.step for event in events] == list(range(20))
    assert log.text.count("cannot be written") == log.text.count("nothing is lost") == 1


class OwnConstructor(TensorboardXWriter):
    """As code for detectron2 has it: the constructor of the base class is not called."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._window_size = 20
        self._writer = SummaryWriter(str(folder))


def test_a_constructor_of_the_users_own_makes_the_writer_that_is_written_to(tmp_path):
    train(tmp_path, 0, 3, OwnConstructor(tmp_path))
    assert curve(tmp_path, "loss") == [(0, 0.0), (1, 1.0), (2, 2.0)]


def json_of(folder: Path) -> JSONWriter:
    return JSONWriter(str(folder / "metrics.json"))


@pytest.mark.parametrize("make_writer", [json_of, TensorboardXWriter])
def test_what_waits_for_a_full_disk_is_in_the_checkpoint(small_disk, make_writer):
    def put_and_write(writer, iteration):
        storage.iter = iteration
        storage.put_scalar("loss", float(iteration))
        writer.write()

    killed = make_writer(small_disk)
    with EventStorage() as storage:
        put_and_write(killed, 4)
        (small_disk / "others").write_bytes(bytes(disk_usage(small_disk).free))
        for iteration in range(5, 300):
            put_and_write(killed, iteration)
        state, run = killed.state_dict(), storage.state_dict()
    (small_disk / "others").unlink()
    with EventStorage(300) as storage:
        storage.load_state_dict(run)
        resumed = make_writer(small_disk)
        assert resumed.restore(state, 300)
        put_and_write(resumed, 300)
        resumed.close()
    if make_writer is json_of:
        rows = map(json.loads, (small_disk / "metrics.json").read_text().splitlines())
        assert [row["iteration"] for row in rows] == [*range(4, 301)]
    else:
        assert [step for step, _ in curve(small_disk, "loss")] == [*range(4, 301)]
    killed.close()
