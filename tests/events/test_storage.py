import copy
import itertools
import math
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events import EventStorage, get_event_storage
from engine.events import storage as storage_module

IMAGE = torch.zeros(3, 4, 4)


class Reader:
    """Stands for a writer."""


def run(losses, window=20) -> EventStorage:
    storage = EventStorage(log_period=window)
    for storage.iter, loss in enumerate(losses):
        storage.put_scalar("loss", loss)
    return storage


# --- scalars ------------------------------------------------------------------------------------


def test_latest_has_a_value_and_its_iteration_for_each_name():
    storage = EventStorage(start_iter=5)
    storage.put_scalar("loss", 1.5)
    storage.step()
    storage.put_scalars(acc=torch.tensor([0.5]), lr=np.float32(0.25))
    storage.put_scalars(smoothing_hint=False, cur_iter=100, AP=31)
    assert storage.latest() == {
        "loss": (1.5, 5),
        "acc": (0.5, 6),
        "lr": (0.25, 6),
        "AP": (31.0, 100),
    }


@pytest.mark.parametrize("value", [None, "1.0", [1.0], torch.ones(2), np.ones(2), 1j])
def test_a_bad_value_is_refused_by_its_full_name_and_leaves_no_trace(value):
    storage = EventStorage()
    with (
        storage.name_scope("val"),
        pytest.raises((TypeError, ValueError), match="metric 'val/acc'"),
    ):
        storage.put_scalar("acc", value)
    assert storage.latest() == {}


@pytest.mark.parametrize("smoothing_hint", [False, None])
def test_the_smoothing_hint_of_a_name_cannot_change(smoothing_hint):
    storage = EventStorage()
    storage.put_scalar("loss", 1.0)
    for error in (ValueError, AssertionError):  # the latter in code for detectron2
        with pytest.raises(error, match="metric 'loss' was put with smoothing_hint=True before"):
            storage.put_scalar("loss", 2.0, smoothing_hint=smoothing_hint)
    storage.put_scalar("acc", 1.0, smoothing_hint=smoothing_hint)
    assert storage.latest() == {"loss": (1.0, 0), "acc": (1.0, 0)}
    assert storage.smoothing_hints() == {"loss": True, "acc": False}


def test_an_iteration_may_be_any_kind_of_integer():
    storage = EventStorage(np.int64(2))
    storage.put_scalar("a", 1.0)
    storage.put_scalar("b", 1.0, cur_iter=np.int64(7))
    storage.put_scalar("c", 1.0, cur_iter=8.0)
    storage.iter = torch.tensor(9)
    storage.put_scalar("d", 1.0)
    iterations = [iteration for _, iteration in storage.latest().values()]
    assert iterations == [2, 7, 8, 9]
    assert [type(iteration) for iteration in iterations] == [int] * 4


def test_the_clock_is_set_or_stepped():
    storage = EventStorage(10)
    storage.step()
    assert (storage.iter, storage.iteration) == (11, 11)
    storage.iter = 40
    assert storage.iteration == 40
    with pytest.raises(AttributeError):
        storage.iteration = 3


@pytest.mark.parametrize("path", ["cpu", "accelerator"])
def test_a_tensor_changed_in_place_after_the_put_does_not_change_the_record(path, request):
    if path == "accelerator":
        request.getfixturevalue("on_accelerator")
    storage = EventStorage()
    total = torch.zeros(1)
    array = np.zeros(())
    for storage.iter in range(4):
        total += 1
        array += 1
        storage.put_scalars(total=total, array=array)
    assert storage.history("total").values() == [(1.0, 0), (2.0, 1), (3.0, 2), (4.0, 3)]
    assert storage.history("array").values() == [(1.0, 0), (2.0, 1), (3.0, 2), (4.0, 3)]


def test_smoothing_is_a_median_over_iterations_and_only_where_hinted():
    storage = EventStorage()
    for storage.iter in range(50):
        storage.put_scalar("loss", storage.iter)
        storage.put_scalar("lr", storage.iter, smoothing_hint=False)
        if storage.iter % 10 == 9:
            storage.put_scalar("acc", storage.iter)
    assert storage.latest_with_smoothing_hint(20) == {
        "loss": (39.5, 49),
        "lr": (49.0, 49),
        "acc": (44.0, 49),
    }
    assert storage.latest_with_smoothing_hint(5)["loss"] == (47.0, 49)
    assert storage.latest_with_smoothing_hint() == storage.latest_with_smoothing_hint(20)
    assert storage.count_samples("loss") == 20
    assert storage.count_samples("acc", 31) == 4


@pytest.mark.parametrize("steps", [3000, 6000, 6010])
def test_a_window_that_is_longer_than_a_history_is_as_long_as_one(steps):
    storage = EventStorage()
    for storage.iter in range(steps):
        storage.put_scalar("loss", storage.iter)
    for window in (1999, 2000, 2500):
        kept = range(steps - min(window, 2000), steps)
        assert storage.recent("loss", window) == list(kept)
        assert storage.readings(window)["loss"] == (sum(kept) / len(kept), steps - 1, steps)


def test_a_subclass_may_have_a_window_of_its_own():
    class Own(EventStorage):
        smoothing_window = 3

    storage = Own()
    for storage.iter in range(30):
        storage.put_scalar("loss", storage.iter)
    assert storage.recent("loss") == [27.0, 28.0, 29.0]
    assert storage.latest_with_smoothing_hint() == {"loss": (28.0, 29)}


def test_recent_values_are_those_of_the_last_iterations():
    storage = EventStorage(log_period=2)
    for storage.iter in range(9):
        storage.put_scalar("loss", storage.iter)
    storage.put_scalar("loss", 8.5)
    assert storage.recent("loss") == [7.0, 8.0, 8.5]
    assert storage.recent("loss", 4) == [5.0, 6.0, 7.0, 8.0, 8.5]
    assert storage.recent("loss", 100) == [*range(9), 8.5]


def test_numbers_put_in_one_call_are_as_if_put_one_by_one():
    storage = EventStorage(5)
    storage.put_scalar("acc", 1.0, smoothing_hint=False)
    with storage.name_scope("teacher"):
        storage.put_numbers({"loss": 2.0, "time": 0.5}, 7)
    storage.put_numbers({"loss": 3.0}, 7.0)
    with pytest.raises(ValueError, match="metric 'acc' was put with smoothing_hint=False before"):
        storage.put_numbers({"acc": 2.0}, 7)
    assert storage.latest() == {
        "acc": (1.0, 5),
        "teacher/loss": (2.0, 7),
        "teacher/time": (0.5, 7),
        "loss": (3.0, 7),
    }


def test_new_names_of_another_thread_do_not_disturb_a_reader():
    storage, stop = EventStorage(), threading.Event()
    for number in range(50):
        for iteration in range(500):
            storage.put_scalar(f"metric {number}", 1.0, cur_iter=iteration)

    def put_new_names() -> None:
        for number in itertools.count():
            storage.put_scalar(f"new {number}", 1.0)
            if stop.wait(1e-4):
                return

    thread = threading.Thread(target=put_new_names)
    thread.start()
    try:
        for _ in range(50):
            storage.state_dict()
            storage.latest()
    finally:
        stop.set()
        thread.join()
    new = [name for name in storage.latest() if name.startswith("new ")]
    assert new == [f"new {number}" for number in range(len(new))]
    assert len(storage.latest()) == 50 + len(new)


def test_log_period_is_the_window_where_none_is_given():
    storage = run(range(100), window=3)
    assert storage.latest_with_smoothing_hint() == {"loss": (98.0, 99)}
    assert storage.count_samples("loss") == 3


def test_what_a_caller_does_with_an_answer_does_not_change_the_next_one():
    storage = run([1.0, 2.0])
    storage.latest_with_smoothing_hint().clear()
    storage.latest().clear()
    storage.histories().clear()
    storage.smoothing_hints().clear()
    assert storage.latest_with_smoothing_hint() == {"loss": (1.5, 1)}
    assert list(storage.histories()) == list(storage.smoothing_hints()) == ["loss"]


def test_nan_and_infinity_are_kept_as_they_are():
    storage = run([1.0, math.nan, math.inf], window=1)
    assert storage.latest() == {"loss": (math.inf, 2)}
    assert storage.latest_with_smoothing_hint() == {"loss": (math.inf, 2)}
    assert math.isnan(storage.latest_with_smoothing_hint(3)["loss"][0])


@pytest.mark.parametrize("ask", ["history", "count_samples"])
def test_asking_for_an_unknown_name_says_so_and_creates_nothing(ask):
    storage = run([1.0])
    with pytest.raises(KeyError, match=r"no metric 'los' was put .*did you mean loss\?"):
        getattr(storage, ask)("los")
    with pytest.raises(KeyError, match=r"no metric 'xyzzy' was put into this storage['\"]$"):
        getattr(storage, ask)("xyzzy")
    assert list(storage.histories()) == ["loss"]


# --- images and histograms ----------------------------------------------------------------------


def test_detectron2s_names_for_scalars_can_be_read():
    storage = EventStorage(3)
    storage.put_scalar("loss", 0.5)
    storage.put_scalar("loss", 0.25)
    assert storage._latest_scalars == {"loss": (0.25, 3)}
    assert storage._history["loss"]._data == [(0.5, 3), (0.25, 3)]


def test_images_come_out_as_chw_bytes_with_their_iteration():
    storage = EventStorage(3)
    storage.put_image("cat", torch.full((8, 6, 3), 200.0))
    name, image, iteration = storage.unwritten_images(Reader())[0]
    assert (name, iteration, image.shape, image.dtype) == ("cat", 3, (3, 8, 6), torch.uint8)
    assert image.unique().tolist() == [200]
    name, image, iteration = storage._vis_data[0]  # where writers for detectron2 look
    assert (name, iteration, image.shape, image.dtype) == ("cat", 3, (3, 8, 6), torch.uint8)


def test_a_bad_image_is_refused_by_its_full_name_and_leaves_no_trace():
    storage = EventStorage()
    with storage.name_scope("val"), pytest.raises(ValueError, match="image 'val/cat'"):
        storage.put_image("cat", torch.zeros(8, 6))
    with storage.name_scope("val"), pytest.raises(ValueError, match="histogram 'val/weights'"):
        storage.put_histogram("weights", torch.zeros(0))
    assert storage._vis_data == storage._histograms == []


def test_a_histogram_counts_all_elements_in_so_many_bins():
    storage = EventStorage(3)
    storage.put_histogram("weights", torch.arange(20).reshape(4, 5), bins=4)
    storage.put_histogram("more", torch.randn(7))
    first, second = storage._histograms
    assert first["num"] == 20
    assert first["bucket_counts"] == [5.0] * 4
    assert len(second["bucket_counts"]) == 1000


# --- name scopes --------------------------------------------------------------------------------


def test_a_name_scope_goes_before_all_names_and_nests():
    storage = EventStorage()
    with storage.name_scope("a"):
        storage.put_scalar("x", 1)
        with storage.name_scope("b/"):
            storage.put_scalars(x=2)
            storage.put_image("i", IMAGE)
            storage.put_histogram("h", torch.ones(3))
        storage.put_scalar("y", 3)
    storage.put_scalar("x", 4)
    assert list(storage.latest()) == ["a/x", "a/b/x", "a/y", "x"]
    assert storage._vis_data[0][0] == "a/b/i"
    assert storage._histograms[0]["tag"] == "a/b/h"


SCOPES = st.recursive(
    st.just("put"),
    lambda inner: st.tuples(
        st.text("ab/", min_size=1).filter(lambda name: name.strip("/")),
        st.booleans(),
        st.lists(inner, max_size=3),
    ),
    max_leaves=10,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(SCOPES, max_size=4))
def test_names_are_those_of_the_scopes_around_whatever_is_raised(tree):
    storage, expected = EventStorage(), []

    def walk(nodes, prefix):
        for node in nodes:
            if node == "put":
                expected.append(f"{prefix}{len(expected)}")
                storage.put_scalar(str(len(expected) - 1), 1.0)
                continue
            name, raises, children = node
            try:
                with storage.name_scope(name):
                    walk(children, prefix + name.rstrip("/") + "/")
                    if raises:
                        raise KeyboardInterrupt
            except KeyboardInterrupt:
                pass

    walk(tree, "")
    assert list(storage.latest()) == expected


# --- ad-hoc state -------------------------------------------------------------------------------


def test_any_attribute_can_be_set_from_anywhere():
    with EventStorage() as storage:
        assert not hasattr(storage, "information")
        get_event_storage().information = {"best": 0.5}
        get_event_storage().early_stop = True
    assert storage.information == {"best": 0.5}
    assert storage.early_stop
    del storage.information
    assert getattr(storage, "information", None) is None


def test_an_attribute_that_was_never_set_is_named_with_its_close_matches():
    storage = EventStorage()
    storage.information = {}
    with pytest.raises(AttributeError, match=r"storage.infomation was never set; .* information"):
        _ = storage.infomation
    with pytest.raises(AttributeError, match=r"storage.early_stp was .* did you mean early_stop\?"):
        _ = storage.early_stp
    with pytest.raises(AttributeError, match=r"storage.put_scaler was .* did you mean put_scalar"):
        storage.put_scaler("loss", 1.0)
    with pytest.raises(AttributeError, match=r"storage.xyzzy was never set$"):
        _ = storage.xyzzy


def test_early_stop_is_off_at_first():
    assert EventStorage().early_stop is False


# --- events -------------------------------------------------------------------------------------


def test_who_listens_hears_what_is_emitted_meanwhile():
    storage, heard = EventStorage(), []
    with storage.listening(after_eval_step=heard.append):
        storage.emit("after_eval_step", 1)
        storage.emit("before_eval_step")
        with pytest.raises(ValueError, match="inner"), storage.listening(after_eval_step=print):
            raise ValueError("inner")
        storage.emit("after_eval_step", 2)
    storage.emit("after_eval_step", 3)
    assert heard == [1, 2]


@pytest.mark.parametrize("many", [1, 10])
def test_a_dict_of_scalars_is_put_as_keywords_are(many, monkeypatch):
    monkeypatch.setattr(storage_module, "MANY_TOGETHER", many)
    storage, metrics = EventStorage(), {"head/loss": 1.0, "acc": torch.tensor(0.5)}
    for storage.iter in range(3):
        storage.put_scalars(metrics, scalars=storage.iter)
    storage.put_scalars({"acc": 0.25}, cur_iter=7)
    storage.put_scalars({}, smoothing_hint=False)
    assert storage.latest() == {"head/loss": (1.0, 2), "acc": (0.25, 7), "scalars": (2.0, 2)}
    assert storage.history("head/loss").count == 3


def test_a_put_scalar_of_a_subclass_or_patched_in_is_what_is_called(monkeypatch):
    monkeypatch.setattr(storage_module, "MANY_TOGETHER", 1)

    class Doubling(EventStorage):
        def put_scalar(self, name, value, *args, **kwargs):
            return super().put_scalar(name, 2 * value, *args, **kwargs)

    storage = Doubling()
    storage.put_scalar("x", 1)
    storage.put_scalars({"z": 3}, y=2.0)
    assert storage.latest() == {"x": (2.0, 0), "z": (6.0, 0), "y": (4.0, 0)}
    storage, put = EventStorage(), []
    storage.put_scalar = lambda *args: put.append(args)
    storage.put_scalars(y=2.0)
    assert put == [("y", 2.0, True, None)]
    monkeypatch.setattr(EventStorage, "put_scalar", lambda self, name, value: (name, value))
    assert EventStorage().put_scalar("x", 1) == ("x", 1)


def test_a_copy_of_a_storage_takes_values_of_its_own():
    storage = EventStorage()
    storage.put_scalar("x", 1.0)
    storage.sync()
    other = copy.deepcopy(storage)
    other.put_scalar("x", 2.0)
    other.sync()
    assert storage.latest() == {"x": (1.0, 0)}
    assert other.latest() == {"x": (2.0, 0)}


@pytest.mark.parametrize(
    "read",
    [
        lambda storage: storage.latest_with_smoothing_hint(),
        lambda storage: storage.history("metric 3").latest(),
        lambda storage: storage.state_dict(),
    ],
)
@pytest.mark.parametrize("stride", [1, 2])
def test_another_thread_may_read_while_values_are_put(read, stride):
    storage, names, is_over, errors = EventStorage(), [f"metric {n}" for n in range(20)], [], []
    storage.put_scalar("metric 3", 0.0)

    def read_on() -> None:
        while not is_over:
            try:
                read(storage)
            except Exception as error:
                errors.append(error)

    reader = threading.Thread(target=read_on, daemon=True)
    reader.start()
    for number in range(1, 2000):
        storage.iter = number * stride
        for name in names:
            storage.put_scalar(name, 1.0)
        if number % 20 == 0:
            storage.latest_with_smoothing_hint()
    is_over.append(True)
    reader.join()
    assert errors == []
    assert {storage.history(name).count for name in names} == {1999, 2000}
