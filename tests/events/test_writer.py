import pytest
import torch

from engine.events import EventStorage, EventWriter, TensorboardXWriter, get_event_storage


class Memory(EventWriter):
    """A writer of a user: it needs only `write`."""

    def __init__(self) -> None:
        self.records: list[dict] = []

    def write(self) -> None:
        self.records.append(get_event_storage().unwritten(self))


class Detectron2Style(EventWriter):
    """A writer for detectron2: it compares iterations, and reads and clears the images itself."""

    def __init__(self) -> None:
        self.last_write = -1
        self.scalars: list[tuple[str, float, int]] = []
        self.images: list[str] = []

    def write(self) -> None:
        storage = get_event_storage()
        new_last_write = self.last_write
        for name, (value, iteration) in storage.latest_with_smoothing_hint(20).items():
            if iteration > self.last_write:
                self.scalars.append((name, value, iteration))
                new_last_write = max(new_last_write, iteration)
        self.last_write = new_last_write
        if len(storage._vis_data) >= 1:
            self.images += [name for name, _, _ in storage._vis_data]
            storage.clear_images()


def test_a_writer_must_say_how_it_writes():
    with pytest.raises(NotImplementedError):
        EventWriter().write()


def test_a_writer_need_not_close_or_rewind_anything():
    writer = Memory()
    writer.rewind(5)
    writer.close()
    with EventStorage(5) as storage:
        storage.put_scalar("loss", 1.0)
        writer.write()
        storage.put_scalar("acc", 2.0)
        writer.write()
    assert writer.records == [{5: {"loss": 1.0}}, {5: {"acc": 2.0}}]


def test_a_writer_writes_the_storage_that_is_current():
    writer = Memory()
    with EventStorage() as outer:
        outer.put_scalar("loss", 1.0)
        with EventStorage() as inner:
            inner.put_scalar("thrown away", 2.0)
            writer.write()
        writer.write()
    assert writer.records == [{0: {"thrown away": 2.0}}, {0: {"loss": 1.0}}]


def test_without_a_storage_there_is_nothing_to_write():
    with pytest.raises(RuntimeError, match="with EventStorage"):
        Memory().write()


def test_a_writer_for_detectron2_works_unchanged():
    writer = Detectron2Style()
    with EventStorage() as storage:
        for storage.iter in range(40):
            storage.put_scalar("loss", storage.iter)
            if storage.iter % 20 == 19:
                storage.put_image(f"image{storage.iter}", torch.zeros(3, 8, 8))
                writer.write()
    assert writer.scalars == [("loss", 9.5, 19), ("loss", 29.5, 39)]
    assert writer.images == ["image19", "image39"]


class ShowsImages(EventWriter):
    """As for detectron2, where TensorboardXWriter clears the images after it."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, int]] = []

    def write(self) -> None:
        self.shown += [(name, at) for name, _, at in get_event_storage()._vis_data]


def test_a_writer_for_detectron2_sees_an_image_once_in_a_loop_of_ones_own(tmp_path):
    shows = ShowsImages()
    writers = [shows, TensorboardXWriter(tmp_path)]
    with EventStorage() as storage:
        for storage.iter in range(100):
            if storage.iter % 50 == 0:
                storage.put_image("pred", torch.rand(3, 8, 8))
            if (storage.iter + 1) % 20 == 0:
                for writer in writers:
                    writer.write()
        for writer in writers:
            writer.close()
    assert shows.shown == [("pred", 0), ("pred", 50)]
