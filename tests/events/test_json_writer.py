import json
import math
import os
import tempfile
from pathlib import Path
from shutil import disk_usage

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.events import EventStorage, JSONWriter, get_event_storage


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "metrics.json"


def lines(path: Path) -> list[dict]:
    """The lines of the file, read as strictly as other tools read JSON."""

    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    text = path.read_text(encoding="utf-8")
    assert text == "" or text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.split("\n")[:-1]]


def iterations(path: Path) -> list[int]:
    return [line["iteration"] for line in lines(path)]


def train(path: Path, start: int, end: int, period: int = 5, storage=None) -> None:
    """A loop as in plain_train_net: `loss` in each iteration, a line each `period`."""
    writer = JSONWriter(str(path))
    writer.rewind(start)
    with storage or EventStorage(start) as storage:
        for storage.iter in range(start, end):
            storage.put_scalar("loss", storage.iter, smoothing_hint=False)
            if (storage.iter + 1) % period == 0:
                writer.write()
    writer.close()


def test_a_line_has_the_names_sorted_and_the_iteration(path):
    writer = JSONWriter(str(path))
    with EventStorage(19) as storage:
        storage.put_scalars(total_loss=1.5, data_time=0.25)
        storage.put_scalar("lr", 0.02, smoothing_hint=False)
        writer.write()
    writer.close()
    assert path.read_text() == '{"data_time":0.25,"iteration":19,"lr":0.02,"total_loss":1.5}\n'


def test_a_name_may_be_another_kind_of_string(path):
    """As those are that stand in an array of NumPy's."""
    always, rarely = np.array(["always", "rarely"])
    writer = JSONWriter(path)
    with EventStorage() as storage:
        for storage.iter in range(60):
            storage.put_scalar(always, 2.0)
            if storage.iter in (9, 19):
                storage.put_scalar(rarely, 1.0)
            if storage.iter % 10 == 9:
                writer.write()
    writer.close()
    assert [set(line) - {"iteration"} for line in lines(path)] == [
        *[{"always", "rarely"}] * 2,
        *[{"always"}] * 4,
    ]


def test_what_was_written_is_in_the_file_without_waiting_for_the_close(path):
    writer = JSONWriter(path)
    with EventStorage() as storage:
        writer.write()
        assert lines(path) == []  # nothing was put: no empty line
        for storage.iter in range(3):
            storage.put_scalar("loss", 1.0)
            writer.write()
            assert iterations(path) == list(range(storage.iter + 1))
    writer.close()


def test_values_of_several_periods_come_as_one_line_an_iteration(path):
    """The latest value of each name, under the iteration it was put in."""
    writer = JSONWriter(str(path))
    with EventStorage() as storage:
        for storage.iter in range(40):
            storage.put_scalar("loss", storage.iter, smoothing_hint=False)
            if storage.iter % 7 == 0:
                storage.put_scalar("acc", storage.iter, smoothing_hint=False)
            if storage.iter % 20 == 19:
                writer.write()
    writer.close()
    assert lines(path) == [
        {"acc": 14.0, "iteration": 14},
        {"iteration": 19, "loss": 19.0},
        {"acc": 35.0, "iteration": 35},
        {"iteration": 39, "loss": 39.0},
    ]


def test_a_value_put_after_a_write_in_the_same_iteration_is_in_the_next(path):
    writer = JSONWriter(str(path))
    with EventStorage() as storage:
        storage.put_scalar("loss", 1.0)
        writer.write()
        storage.put_scalar("late", 2.0)
        storage.step()
        storage.put_scalar("loss", 3.0)
        writer.write()
        writer.write()
    writer.close()
    assert lines(path) == [
        {"iteration": 0, "loss": 1.0},
        {"iteration": 0, "late": 2.0},
        {"iteration": 1, "loss": 2.0},
    ]


@pytest.mark.parametrize(("window", "expected"), [(None, 89.5), (1, 99.0), (5, 97.0)])
def test_values_are_medians_over_a_window_of_iterations(path, window, expected):
    writer = JSONWriter(str(path), window_size=window)
    with EventStorage() as storage:
        for storage.iter in range(100):
            storage.put_scalar("loss", storage.iter)
        writer.write()
    writer.close()
    assert lines(path) == [{"iteration": 99, "loss": expected}]


def test_nan_and_infinity_are_null(path):
    writer = JSONWriter(str(path))
    with EventStorage() as storage:
        storage.put_scalars(a=math.nan, b=math.inf, c=-math.inf, d=1.0)
        writer.write()
    writer.close()
    assert lines(path) == [{"a": None, "b": None, "c": None, "d": 1.0, "iteration": 0}]


def test_a_metric_called_iteration_does_not_take_the_place_of_the_iteration(path):
    writer = JSONWriter(str(path))
    with EventStorage(7) as storage:
        storage.put_scalars(iteration=math.nan, loss=math.nan)
        writer.write()
        storage.put_scalars(iteration=0.5, loss=1.0)
        writer.write()
    writer.close()
    assert iterations(path) == [7, 7]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.dictionaries(st.text(min_size=1), st.floats(), max_size=5), min_size=1, max_size=5)
)
@example([{"50%": 1.0, "%r": 2.0, '"': 3.0}])
def test_every_line_is_json_that_gives_back_the_values(steps):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "metrics.json")
        writer = JSONWriter(str(path), window_size=1)
        with EventStorage() as storage:
            for storage.iter, metrics in enumerate(steps):
                for name, value in metrics.items():
                    storage.put_scalar(name, value, smoothing_hint=False)
                writer.write()
        writer.close()
        assert lines(path) == [
            {n: v if math.isfinite(v) else None for n, v in metrics.items()}
            | {"iteration": iteration}
            for iteration, metrics in enumerate(steps)
            if metrics
        ]


def test_a_write_after_close_goes_on_in_the_same_file(path):
    writer = JSONWriter(str(path))
    with EventStorage() as storage:
        storage.put_scalar("loss", 1.0)
        writer.write()
        writer.close()
        writer.close()
        storage.put_scalar("acc", 1.0)
        writer.write()
        writer.close()
    assert lines(path) == [{"iteration": 0, "loss": 1.0}, {"acc": 1.0, "iteration": 0}]


def test_two_writers_have_all_lines_each(tmp_path):
    writers = [JSONWriter(str(tmp_path / name)) for name in "ab"]
    with EventStorage() as storage:
        for storage.iter in range(3):
            storage.put_scalar("loss", storage.iter)
            for writer in writers:
                writer.write()
    for writer in writers:
        writer.close()
    assert lines(tmp_path / "a") == lines(tmp_path / "b")
    assert iterations(tmp_path / "a") == [0, 1, 2]


# --- an existing file ---------------------------------------------------------------------------


@pytest.mark.parametrize("torn", ["{", '{"iteration": 1, "loss": 0.', "\0\0\0", '{"a": "ä'])
def test_what_a_killed_process_left_of_a_last_line_is_removed(path, torn):
    path.write_text('{"iteration": 0, "loss": 1.0}\n' + torn, encoding="utf-8")
    JSONWriter(str(path)).close()
    assert lines(path) == [{"iteration": 0, "loss": 1.0}]


def test_a_file_that_is_only_a_torn_line_becomes_empty(path):
    path.write_bytes(b'{"iteration": 0, "lo\xc3')
    JSONWriter(str(path)).close()
    assert path.read_bytes() == b""


def test_a_whole_file_is_only_appended_to(path):
    path.write_text('{"iteration": 0, "loss": 1.0}\n')
    writer = JSONWriter(str(path))
    with EventStorage(1) as storage:
        storage.put_scalar("loss", 2.0)
        writer.write()
    writer.close()
    assert iterations(path) == [0, 1]


def test_a_resumed_run_has_each_iteration_once(path):
    train(path, 0, 17)
    train(path, 10, 20)  # from a checkpoint of iteration 9
    assert iterations(path) == [4, 9, 14, 19]
    assert [line["loss"] for line in lines(path)] == [4.0, 9.0, 14.0, 19.0]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), max_size=4))
def test_however_often_it_is_resumed_each_iteration_is_there_once(runs):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "metrics.json")
        train(path, 0, 30, period=1)
        for start, length in runs:
            reached = len(lines(path))
            train(path, min(start, reached), min(start, reached) + length, period=1)
            assert iterations(path) == list(range(len(lines(path))))


def test_a_value_written_after_its_checkpoint_is_not_written_again_by_the_resumed_run(path):
    """`acc` of iteration 2 is in the checkpoint of 3, and in the line that was written at 4."""
    writer = JSONWriter(str(path))
    with EventStorage() as storage:
        for storage.iter in range(5):
            storage.put_scalar("loss", storage.iter, smoothing_hint=False)
            if storage.iter == 2:
                storage.put_scalar("acc", 0.5)
            if storage.iter == 3:
                checkpoint = storage.state_dict()
        writer.write()
    writer.close()
    resumed = EventStorage(4)
    resumed.load_state_dict(checkpoint)
    train(path, 4, 10, storage=resumed)
    assert lines(path) == [
        {"acc": 0.5, "iteration": 2},
        {"iteration": 4, "loss": 4.0},
        {"iteration": 9, "loss": 9.0},
    ]


def test_a_value_that_a_killed_run_never_wrote_is_written_by_the_resumed_one(path):
    JSONWriter(str(path)).close()
    storage = EventStorage()
    storage.put_scalar("acc", 0.5)
    resumed = EventStorage(4)
    resumed.load_state_dict(storage.state_dict())
    train(path, 4, 5, storage=resumed)
    assert lines(path) == [{"acc": 0.5, "iteration": 0}, {"iteration": 4, "loss": 4.0}]


def test_a_run_from_the_start_keeps_the_old_file_aside(path):
    for end in (5, 10, 15):
        train(path, 0, end)
    assert iterations(path) == [4, 9, 14]
    assert iterations(path.with_name("metrics.json.1")) == [4]
    assert iterations(path.with_name("metrics.json.2")) == [4, 9]


def test_rewinding_an_empty_file_leaves_nothing_aside(path):
    train(path, 0, 2)
    train(path, 0, 2)
    assert os.listdir(path.parent) == ["metrics.json"]


def test_a_rewind_in_the_middle_of_a_run_drops_what_came_after(path):
    writer = JSONWriter(str(path))
    with EventStorage() as storage:
        for storage.iter in range(6):
            storage.put_scalar("loss", 1.0)
            writer.write()
        writer.rewind(3)
        assert iterations(path) == [0, 1, 2]
        storage.iter = 3
        storage.put_scalar("loss", 1.0)
        writer.write()
    writer.close()
    assert iterations(path) == [0, 1, 2, 3]


@pytest.mark.parametrize("line", ["not json", '{"loss": 1.0}', "[1, 2]", "", '{"iteration": "x"}'])
def test_rewinding_a_file_of_something_else_names_the_line_and_changes_nothing(path, line):
    text = f'{{"iteration": 0}}\n{line}\n{{"iteration": 9}}\n'
    path.write_text(text)
    writer = JSONWriter(str(path))
    with pytest.raises(ValueError, match=r"metrics.json:2: not a line of metrics"):
        writer.rewind(5)
    assert path.read_text() == text


def test_a_tensor_on_an_accelerator_is_written_as_its_number(path, on_accelerator, operations):
    writer = JSONWriter(str(path))
    with EventStorage() as storage, operations:
        for storage.iter in range(20):
            storage.put_scalars(loss=torch.tensor(2.0), acc=torch.tensor([1.0]))
        writer.write()
    writer.close()
    assert lines(path) == [{"acc": 1.0, "iteration": 19, "loss": 2.0}]
    assert (operations.conversions, operations.transfers) == (0, 1)


def test_a_file_that_is_gone_can_be_rewound(tmp_path):
    writer = JSONWriter(tmp_path / "metrics.json")
    (tmp_path / "metrics.json").unlink()
    for iteration in (0, 5):
        writer.rewind(iteration)
    with EventStorage() as storage:
        storage.put_scalar("x", 1.0)
        writer.write()
    writer.close()
    assert (tmp_path / "metrics.json").read_text() == '{"iteration":0,"x":1.0}\n'


# --- a full disk --------------------------------------------------------------------------------


def test_lines_that_a_full_disk_did_not_take_are_there_later_once_and_in_order(small_disk, log):
    path = small_disk / "metrics.json"
    writer = JSONWriter(path)
    with EventStorage() as storage:
        for storage.iter in range(100):
            if storage.iter == 20:
                (small_disk / "others").write_bytes(bytes(disk_usage(small_disk).free))
            if storage.iter == 80:
                (small_disk / "others").unlink()
            storage.put_scalars(**{f"loss{number}": storage.iter for number in range(20)})
            writer.write()
            assert iterations(path) == list(range(len(lines(path))))  # whole lines, at any time
    writer.close()
    assert iterations(path) == list(range(100))
    assert log.text.count("metrics.json cannot be written") == 1
    assert log.text.count("metrics.json is written again; nothing is lost") == 1


def test_a_file_that_cannot_be_opened_is_an_error_before_the_first_write(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        JSONWriter(tmp_path / "file" / "metrics.json")


def test_a_line_after_one_that_goes_was_written_after_the_checkpoint_and_goes_too(path):
    path.write_text('{"iteration": 1}\n{"iteration": 5}\n{"iteration": 2, "late": 1.0}\n')
    JSONWriter(path).rewind(4)
    assert lines(path) == [{"iteration": 1}]


def test_a_last_line_that_only_lacks_its_end_is_kept(path):
    path.write_text('{"iteration": 1}\n{"iteration": 2}')
    JSONWriter(path)
    assert iterations(path) == [1, 2]


def test_it_is_put_back_to_where_it_stood_whatever_the_iterations_are(path):
    def write(writer: JSONWriter, steps: range) -> None:
        with EventStorage() as storage:
            for storage.iter in steps:
                storage.put_scalar("loss", 1.0)
                storage.put_scalar("by_sample", 1.0, cur_iter=64 * storage.iter)
                writer.write()
        writer.close()

    writer = JSONWriter(path)
    write(writer, range(1, 5))
    state, text = writer.state_dict(), path.read_text()
    write(writer, range(5, 8))
    assert JSONWriter(path).restore(state, 5)
    assert path.read_text() == text


@pytest.mark.parametrize("text", ["", '{"iteration": 1}\n', '{"iteration": 1, "loss": 1.0}\n'])
def test_a_file_that_is_another_one_cannot_be_put_back(path, text):
    path.write_text(text)
    assert not JSONWriter(path).restore({"size": 20}, 5)
    assert path.read_text() == text


def test_a_write_as_detectron2_has_it_works(path):
    """With its private attributes, as subclasses have it that add something."""

    class Own(JSONWriter):
        def write(self) -> None:
            latest = get_event_storage().latest_with_smoothing_hint(self._window_size)
            new = {name: v for name, (v, at) in latest.items() if at > self._last_write}
            self._last_write = get_event_storage().iter
            self._file_handle.write(json.dumps({**new, "iteration": self._last_write}) + "\n")
            self._file_handle.flush()
            os.fsync(self._file_handle.fileno())

    writer = Own(path)
    assert writer._window_size == 20
    with EventStorage() as storage:
        for storage.iter in range(2):
            storage.put_scalar("loss", storage.iter, smoothing_hint=False)
            writer.write()
    writer.close()
    assert lines(path) == [{"loss": 0.0, "iteration": 0}, {"loss": 1.0, "iteration": 1}]
