"""Tensors that wait on their device for a writer, and how much a storage holds at most."""

import gc
import tracemalloc
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events import EventStorage

IMAGE = torch.zeros(3, 4, 4)


class Reader:
    """Stands for a writer."""


PUTS = st.tuples(
    st.sampled_from(["loss", "acc", "time"]),
    st.floats(width=32),
    st.none() | st.integers(0, 30),
)
READS = st.sampled_from(["latest", "latest_with_smoothing_hint", "history", "state_dict"])


@settings(max_examples=40, deadline=None)
@given(st.lists(PUTS | READS, max_size=60))
def test_waiting_on_the_device_changes_no_answer(events):
    """The same puts and reads, with tensors that wait and with numbers."""
    waiting, plain = EventStorage(log_period=5), EventStorage(log_period=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.events.scalar.DEFERS_ALL", True)
        for event in events:
            if isinstance(event, tuple):
                name, value, iteration = event
                waiting.put_scalar(name, torch.tensor(value), cur_iter=iteration)
                plain.put_scalar(name, value, cur_iter=iteration)
            elif event == "history":
                values = [storage.histories().values() for storage in (waiting, plain)]
                ours, expected = ([h.values() for h in histories] for histories in values)
                assert str(ours) == str(expected)
            else:
                assert str(getattr(waiting, event)()) == str(getattr(plain, event)())
            waiting.step()
            plain.step()


@pytest.mark.usefixtures("on_accelerator")
def test_nothing_is_converted_before_a_read_and_then_all_in_one_transfer(operations):
    storage = EventStorage()
    with operations:
        for storage.iter in range(100):
            loss = torch.tensor([float(storage.iter)], requires_grad=True)
            storage.put_scalars(loss=loss, loss_box=loss * 2, acc=loss.detach().mean())
    assert (operations.conversions, operations.transfers) == (0, 0)
    with operations:
        for _ in range(3):
            assert storage.latest()["loss_box"] == (198.0, 99)
            assert storage.latest_with_smoothing_hint()["loss"] == (89.5, 99)
            assert storage.history("acc").avg(2) == 98.5
    assert (operations.conversions, operations.transfers) == (0, 1)


@pytest.mark.usefixtures("on_accelerator")
def test_tensors_do_not_pile_up_where_nobody_reads():
    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())

    before = alive()
    storage = EventStorage()
    for storage.iter in range(30_001):
        storage.put_scalar("loss", torch.tensor(float(storage.iter)))
    assert alive() - before <= 10_001
    assert storage.history("loss").global_avg() == 15_000.0


@pytest.mark.usefixtures("on_accelerator")
def test_who_asked_for_it_is_told_of_each_time_that_values_are_fetched():
    """Also where no writer asks."""
    storage, heard = EventStorage(), []
    storage.on_sync(lambda: heard.append(storage.iter))
    for storage.iter in range(15_000):
        storage.put_scalar("loss", torch.tensor(float(storage.iter)))
    assert len(heard) == 1
    storage.sync()
    assert heard[1:] == [14_999]


@pytest.mark.usefixtures("on_accelerator")
def test_an_error_of_who_is_told_leaves_the_storage_readable():
    errors = [FloatingPointError("told so")]

    def refuse():
        if errors:
            raise errors.pop()

    def put_until_told(storage):
        for number in range(30_000):
            storage.put_scalar(f"metric {number}", torch.tensor(1.0))

    storage = EventStorage()
    storage.on_sync(refuse)
    with pytest.raises(FloatingPointError, match="told so"):
        put_until_told(storage)
    assert set(storage.latest().values()) == {(1.0, 0)}
    assert storage.latest_with_smoothing_hint() == storage.latest()
    assert list(storage.unwritten(Reader())[0]) == list(storage.state_dict()["scalars"])


@pytest.mark.usefixtures("on_accelerator")
def test_images_and_histograms_are_taken_without_reading_them(operations):
    storage = EventStorage()
    with operations:
        storage.put_image("cat", torch.rand(8, 6, 3))
        storage.put_histogram("weights", torch.randn(4, 5))
    assert operations.conversions == 0


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_steps", [True, False])
def test_memory_does_not_grow_with_the_number_of_puts(has_steps):
    storage = EventStorage()
    used = {}
    tracemalloc.start()
    try:
        for count in range(70_001):
            storage.put_scalar("loss", count * 0.5)
            if has_steps:
                storage.step()
            if count in (20_000, 70_000):
                used[count] = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used[70_000] - used[20_000] < 100_000  # all values would be 4 MB more


def test_a_history_held_by_a_hook_is_always_up_to_date():
    storage = EventStorage()
    storage.put_scalar("loss", 0.0)
    history = storage.history("loss")
    reads = [
        (history.latest, 1.0),
        (lambda: history.latest_iteration, 2),
        (lambda: history.count, 4),
        (lambda: history.values()[-1], (4.0, 4)),
        (lambda: history.median(1), 5.0),
        (lambda: history.avg(1), 6.0),
        (history.global_avg, 3.5),
        (lambda: history.recent(2), [7.0, 8.0]),
        (lambda: history.recent(1), [9.0]),
    ]
    for storage.iter, (read, expected) in enumerate(reads, start=1):
        storage.put_scalar("loss", storage.iter)
        assert read() == expected


def test_images_and_histograms_that_nobody_writes_are_bounded(monkeypatch, caplog):
    monkeypatch.setattr("engine.utils.logger._counts", Counter())  # as in a fresh process
    storage = EventStorage()
    for storage.iter in range(1000):
        storage.put_image("image", IMAGE)
        storage.put_histogram("weights", torch.ones(3))
    images = storage.unwritten_images(Reader())
    histograms = storage.unwritten_histograms(Reader())
    assert [iteration for *_, iteration in images] == list(range(800, 1000))
    assert [summary["global_step"] for summary in histograms] == list(range(800, 1000))
    assert len(storage._vis_data) == len(storage._histograms) == 200
    assert len(caplog.records) == 1
    assert "the oldest are dropped" in caplog.text
