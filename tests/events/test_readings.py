import pytest

from engine.events import EventStorage


class Reader:
    """Stands for a writer."""


@pytest.fixture
def storage():
    """Ten steps of two names, of which medians over three are shown; a line every five steps."""
    made = EventStorage(log_period=3)
    for made.iter in range(10):
        made.put_scalars(loss=made.iter, acc=2 * made.iter)
        if made.iter % 5 == 4:
            made.readings()
    return made


@pytest.fixture
def reader(storage):
    made = Reader()
    assert storage.unwritten(made) == {9: {"loss": 8.0, "acc": 16.0}}
    return made


def test_of_names_that_came_together_only_those_that_go_on_are_news(storage, reader):
    storage.iter = 10
    storage.put_scalar("acc", 5.0)
    assert storage.unwritten(reader) == {10: {"acc": 16.0}}
    assert storage.unwritten(reader) == {}


def test_another_window_is_no_news(storage, reader):
    for window in (5, 50, 3):
        assert storage.unwritten(reader, window) == {}
    assert storage.unwritten(Reader(), 5) == {9: {"loss": 7.0, "acc": 14.0}}


def test_a_reading_has_its_iteration_and_how_many_values_there_were(storage):
    readings = storage.readings()
    assert dict(readings) == {"loss": (8.0, 9, 10), "acc": (16.0, 9, 10)}
    assert len(readings) == 2
    assert "lr" not in readings


def test_readings_stay_as_they_are_when_more_is_put(storage):
    readings = storage.readings()
    before = dict(readings)
    storage.iter = 10
    storage.put_scalars(loss=7.0, acc=7.0, lr=0.1)
    assert storage.readings()["lr"] == (0.1, 10, 1)
    assert dict(readings) == before


def test_what_was_read_is_not_news_to_a_run_that_goes_on(storage, reader):
    storage.unwritten(other := Reader())
    storage.iter = 10
    storage.put_scalars(loss=7.0, acc=7.0)
    storage.unwritten(reader)
    resumed = EventStorage(log_period=3)
    resumed.load_state_dict(storage.state_dict())
    first, second = Reader(), Reader()
    assert resumed.unwritten(first) == {}
    assert resumed.unwritten(second) == {10: {"loss": 8.0, "acc": 16.0}}
    assert other is not second  # which has its place


def test_the_state_of_a_storage_that_goes_on_is_that_of_one_that_never_stopped(storage, reader):
    resumed = EventStorage(log_period=3)
    resumed.load_state_dict(storage.state_dict())
    for one in (storage, resumed):
        one.iter = 10
        one.put_scalar("acc", 5.0)
    assert resumed.state_dict() == storage.state_dict()
