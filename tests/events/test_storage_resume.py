"""Each writer's cursor, and what a storage hands out after a resume."""

import copy
import gc
import io
import pickle
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events import EventStorage

IMAGE = torch.zeros(3, 4, 4)


class Reader:
    """Stands for a writer."""


class OtherReader:
    """Stands for a writer of another kind."""


@dataclass
class SettingsReader:
    """Stands for a writer that is a dataclass, which has no hash."""

    folder: str = ""


def resumed(storage: EventStorage, start_iter: int = 0) -> EventStorage:
    """A storage loaded from the checkpoint of another."""
    file = io.BytesIO()
    torch.save(storage.state_dict(), file)
    file.seek(0)
    loaded = EventStorage(start_iter)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    return loaded


# --- cursors ------------------------------------------------------------------------------------


def test_a_reader_gets_each_value_once_and_those_put_after_a_read_in_the_next():
    storage, reader = EventStorage(), Reader()
    storage.put_scalar("loss", 1.0)
    assert storage.unwritten(reader) == {0: {"loss": 1.0}}
    assert storage.unwritten(reader) == {}
    storage.put_scalar("late", 2.0)
    assert storage.unwritten(reader) == {0: {"late": 2.0}}
    storage.put_scalar("late", 2.0)  # the same value again is a new one
    assert storage.unwritten(reader) == {0: {"late": 2.0}}


def test_readers_that_are_equal_each_get_everything():
    storage, readers = EventStorage(), [SettingsReader(), SettingsReader()]
    for reader in readers:
        storage.expect_media_reader(reader)
    storage.put_scalar("loss", 1.0)
    storage.put_image("image", IMAGE)
    for reader in readers:
        assert storage.unwritten(reader) == {0: {"loss": 1.0}}
        assert len(storage.unwritten_images(reader)) == 1


def test_every_reader_gets_everything():
    storage, readers = EventStorage(), [Reader(), Reader(), OtherReader()]
    for storage.iter in range(3):
        storage.put_scalar("loss", storage.iter)
        storage.put_image("image", IMAGE)
        storage.put_histogram("weights", torch.ones(3))
        for reader in readers[: storage.iter + 1]:  # the others read less often
            assert list(storage.unwritten(reader)) == [storage.iter]
    for reader in readers:
        assert [at for *_, at in storage.unwritten_images(reader)] == [0, 1, 2]
        assert [one["global_step"] for one in storage.unwritten_histograms(reader)] == [0, 1, 2]
        assert storage.unwritten_images(reader) == storage.unwritten_histograms(reader) == []


def test_a_reader_that_found_nothing_yet_gets_what_one_that_reads_more_often_has_had():
    storage, often, seldom = EventStorage(), Reader(), Reader()
    for storage.iter in range(4):
        if storage.iter > 0:
            storage.put_image("image", IMAGE)
            storage.put_histogram("weights", torch.ones(3))
        for reader in (often, seldom) if storage.iter % 3 == 0 else (often,):
            images, histograms = (
                storage.unwritten_images(reader),
                storage.unwritten_histograms(reader),
            )
    assert reader is seldom
    assert [at for *_, at in images] == [1, 2, 3]
    assert [one["global_step"] for one in histograms] == [1, 2, 3]


def test_only_the_latest_value_of_a_name_is_handed_out_sorted_by_iteration():
    storage, reader = EventStorage(), Reader()
    for storage.iter in range(20):
        storage.put_scalar("loss", storage.iter)
        if storage.iter % 5 == 2:
            storage.put_scalar("acc", storage.iter, smoothing_hint=False)
    storage.put_scalar("early", 1.0, cur_iter=3)
    records = storage.unwritten(reader, window_size=4)
    assert list(records.items()) == [(3, {"early": 1.0}), (17, {"acc": 17.0}), (19, {"loss": 17.5})]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("steps", [1, 5])
def test_names_that_are_more_than_strings_are_saved_as_strings(together, steps):
    class Name(str):
        pass

    storage, reader = EventStorage(), Reader()
    metrics = {Name(f"metric{number}"): 1.0 for number in range(12)}
    for storage.iter in range(steps):
        if together:
            storage.put_scalars(metrics)
        else:
            for name, value in metrics.items():
                storage.put_scalar(name, value)
    storage.unwritten(reader)
    state = storage.state_dict()
    names = [*state["scalars"], *(name for cursor in state["cursors"].values() for name in cursor)]
    assert len(names) == 24
    assert {type(name) for name in names} == {str}


def test_a_reader_that_did_not_read_between_two_resumes_keeps_its_place():
    storage, reader = EventStorage(), Reader()
    storage.put_scalar("loss", 1.0)
    storage.unwritten(reader)
    assert resumed(resumed(storage)).unwritten(reader) == {}


def test_images_that_were_cleared_are_gone_and_later_ones_are_not():
    storage, slow, quick = EventStorage(), Reader(), Reader()
    storage.put_image("first", IMAGE)
    storage.put_histogram("first", torch.ones(3))
    storage.unwritten_images(quick)
    storage.clear_images()
    storage.clear_histograms()
    assert storage.unwritten_histograms(quick) == []
    storage.put_image("second", IMAGE)
    storage.put_histogram("second", torch.ones(3))
    for reader in (slow, quick):
        assert [name for name, *_ in storage.unwritten_images(reader)] == ["second"]
        assert [one["tag"] for one in storage.unwritten_histograms(reader)] == ["second"]


def test_a_reader_that_is_gone_is_forgotten():
    storage = EventStorage()
    for _ in range(3):
        storage.put_scalar("loss", 1.0)
        assert storage.unwritten(Reader())
    gc.collect()
    assert storage.state_dict()["cursors"] == {}


PUT = st.tuples(st.just("put"), st.sampled_from("abc"), st.none() | st.integers(0, 9))
READ = st.tuples(st.just("read"), st.integers(0, 2), st.none())


@settings(max_examples=40, deadline=None)
@given(st.lists(PUT | READ, max_size=40))
def test_a_read_hands_out_the_latest_of_the_names_put_since_the_last_one(events):
    storage, readers = EventStorage(), [Reader(), Reader(), OtherReader()]
    pending: list[dict[str, tuple[float, int]]] = [{}, {}, {}]
    for number, (kind, which, iteration) in enumerate(events):
        storage.iter = number
        if kind == "put":
            storage.put_scalar(which, number, smoothing_hint=False, cur_iter=iteration)
            for names in pending:
                names[which] = (number, number if iteration is None else iteration)
        else:
            expected: dict[int, dict[str, float]] = {}
            for name, (value, at) in pending[which].items():
                expected.setdefault(at, {})[name] = value
            assert storage.unwritten(readers[which]) == expected
            pending[which].clear()


# --- resume -------------------------------------------------------------------------------------

VALUES = st.floats(allow_nan=False, width=32)
PUTS = st.lists(st.tuples(st.sampled_from("abc"), VALUES), max_size=60)


@settings(max_examples=40, deadline=None)
@given(PUTS, PUTS)
def test_a_resumed_storage_goes_on_as_if_it_had_never_stopped(before, after):
    storage = EventStorage()

    def put(storage, puts):
        for name, value in puts:
            storage.put_scalar(name, value, smoothing_hint=name != "c")
            storage.step()

    put(storage, before)
    loaded = resumed(storage, start_iter=len(before))
    for _ in range(2):
        assert loaded.iter == storage.iter
        assert loaded.latest() == storage.latest()
        smoothed = [one.latest_with_smoothing_hint(7) for one in (loaded, storage)]
        assert repr(smoothed[0]) == repr(smoothed[1])  # between inf and -inf there is NaN
        assert loaded.smoothing_hints() == storage.smoothing_hints()
        for name in storage.histories():
            assert loaded.history(name).values() == storage.history(name).values()
            assert loaded.history(name).count == storage.history(name).count
        put(storage, after)
        put(loaded, after)


@pytest.mark.parametrize("count", [1, 1500, 2000, 2300, 6000])
def test_saving_does_not_change_what_is_saved(count):
    storage = EventStorage()
    for storage.iter in range(count):
        storage.put_scalar("loss", storage.iter)
    latest = storage.latest_with_smoothing_hint(100)
    kept = storage.history("loss").values()
    storage.state_dict()
    assert storage.latest_with_smoothing_hint(100) == latest
    assert storage.history("loss").values() == kept
    assert storage.history("loss").count == count
    assert storage.history("loss").global_avg() == (count - 1) / 2


@pytest.mark.usefixtures("on_accelerator")
def test_a_state_has_numbers_also_for_what_was_on_a_device():
    storage = EventStorage()
    storage.put_scalar("loss", torch.tensor(2.0))
    assert storage.state_dict()["scalars"]["loss"]["values"] == [2.0]
    assert resumed(storage).latest() == {"loss": (2.0, 0)}


def test_a_resumed_reader_is_not_handed_what_it_had_already():
    storage, first, second, other = EventStorage(), Reader(), Reader(), OtherReader()
    storage.put_scalars(acc=0.5, loss=1.0)
    for reader in (first, second, other):
        storage.unwritten(reader)
    storage.put_scalar("loss", 2.0, cur_iter=1)
    storage.unwritten(second)
    loaded = resumed(storage, start_iter=2)
    new_first, new_second, new_other = Reader(), Reader(), OtherReader()
    assert loaded.unwritten(new_first) == {1: {"loss": 1.5}}
    assert loaded.unwritten(new_second) == {}
    assert loaded.unwritten(new_other) == {1: {"loss": 1.5}}
    loaded.put_scalar("acc", 0.75)
    for reader in (new_first, new_second, new_other):
        assert loaded.unwritten(reader) == {2: {"acc": 0.625}}


def test_a_reader_that_the_first_run_did_not_have_gets_everything():
    storage, reader = EventStorage(), Reader()
    storage.put_scalar("acc", 0.5)
    storage.unwritten(reader)
    assert resumed(storage).unwritten(OtherReader()) == {0: {"acc": 0.5}}


def test_what_was_asked_before_loading_does_not_hide_what_is_loaded():
    storage = EventStorage()
    storage.put_scalar("acc", 0.5)
    loaded = EventStorage()
    assert loaded.latest_with_smoothing_hint() == {}
    loaded.load_state_dict(storage.state_dict())
    assert loaded.latest_with_smoothing_hint() == {"acc": (0.5, 0)}


def test_loading_replaces_what_was_put_before_under_the_same_name():
    storage, loaded = EventStorage(), EventStorage()
    storage.put_scalar("acc", 0.5)
    loaded.put_scalar("acc", 0.75)
    loaded.load_state_dict(storage.state_dict())
    assert loaded.history("acc").values() == [(0.5, 0)]


def test_the_smoothing_hint_survives_unless_the_program_has_another_one_by_now():
    storage = EventStorage()
    storage.put_scalar("acc", 0.5, smoothing_hint=False)
    loaded = resumed(storage)
    assert loaded.smoothing_hints() == {"acc": False}
    loaded.put_scalar("acc", 0.6)
    assert loaded.smoothing_hints() == {"acc": True}
    with pytest.raises(ValueError, match="metric 'acc' was put with smoothing_hint=True before"):
        loaded.put_scalar("acc", 0.6, smoothing_hint=False)


def test_a_storage_can_be_pickled_and_copied():
    storage = EventStorage(start_iter=7, log_period=3)
    storage.put_scalar("acc", 0.5)
    storage.note = "kept"
    for other in (pickle.loads(pickle.dumps(storage)), copy.deepcopy(storage)):
        assert (other.iter, other.smoothing_window, other.note) == (7, 3, "kept")
        assert other.latest() == {"acc": (0.5, 7)}
        other.put_scalar("acc", 0.7)
    assert storage.latest() == {"acc": (0.5, 7)}
    assert pickle.loads(pickle.dumps(storage.history("acc"))).latest() == 0.5


def test_ad_hoc_state_survives_but_not_the_wish_to_stop():
    storage = EventStorage()
    storage.information = {"best": 0.5, "names": ["a", "b"]}
    storage.model = torch.nn.Linear(1, 1)
    storage.early_stop = True
    loaded = resumed(storage)
    assert loaded.information == {"best": 0.5, "names": ["a", "b"]}
    assert loaded.early_stop is False
    assert not hasattr(loaded, "model")
