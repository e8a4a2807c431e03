import json
import logging
import math
import re

import pytest
import torch

from engine.events import CommonMetricPrinter, EventStorage, JSONWriter


@pytest.fixture
def printed(caplog):
    """The fields of the lines printed so far: [{"iter": "19", "total_loss": "0.5"}, ...]."""
    caplog.set_level(logging.INFO)

    def fields() -> list[dict[str, str]]:
        found = []
        for message in caplog.messages:
            pairs = [field.partition(": ") for field in message.strip().split("  ")]
            assert len({name for name, *_ in pairs}) == len(pairs), message
            found.append({name: value for name, _, value in pairs})
        return found

    return fields


def test_a_line_has_the_fields_that_people_know(caplog):
    caplog.set_level(logging.INFO)
    with EventStorage() as storage:
        for storage.iter in range(20):
            storage.put_scalars(total_loss=1.5, loss_cls=1.0, acc=0.9, time=0.25, data_time=0.125)
            storage.put_scalar("lr", 0.02, smoothing_hint=False)
            storage.put_scalar("[metric]AP", 31.25, smoothing_hint=False)
        CommonMetricPrinter(max_iter=100).write()
    assert caplog.messages == [
        " eta: 0:00:20  iter: 19  total_loss: 1.5  loss_cls: 1  [metric]AP: 31.25  "
        "time: 0.2500  last_time: 0.2500  data_time: 0.1250  last_data_time: 0.1250  lr: 0.02"
    ]


def test_an_empty_storage_makes_a_line_with_the_iteration(printed):
    with EventStorage(3):
        CommonMetricPrinter().write()
        CommonMetricPrinter(10).write()
    assert printed() == [{"iter": "3"}, {"iter": "3"}]


def test_without_max_iter_there_is_no_eta(printed):
    with EventStorage() as storage:
        storage.put_scalar("time", 1.0)
        CommonMetricPrinter().write()
        assert "eta_seconds" not in storage.latest()
    assert list(printed()[0]) == ["iter", "time", "last_time"]


def test_the_eta_is_the_mean_time_of_a_step_times_the_steps_to_go_and_is_stored(printed):
    with EventStorage() as storage:
        for storage.iter, seconds in enumerate([1.0, 3.0]):
            storage.put_scalar("time", seconds)
        CommonMetricPrinter(max_iter=10_002).write()
        assert storage.latest()["eta_seconds"] == (20_000.0, 1)
        assert storage.smoothing_hints()["eta_seconds"] is False
    assert printed()[0]["eta"] == "5:33:20"


def test_a_writer_after_it_writes_the_eta_of_the_same_iteration(tmp_path):
    writers = [CommonMetricPrinter(max_iter=12), JSONWriter(str(tmp_path / "metrics.json"))]
    with EventStorage(1) as storage:
        storage.put_scalar("time", 0.5)
        for writer in writers:
            writer.write()
    writers[1].close()
    line = json.loads((tmp_path / "metrics.json").read_text())
    assert line == {"eta_seconds": 5.0, "iteration": 1, "time": 0.5}


def test_at_the_last_step_nothing_is_left_and_at_max_iter_it_is_silent(printed):
    printer = CommonMetricPrinter(max_iter=10)
    with EventStorage(9) as storage:
        storage.put_scalar("time", 1.0)
        printer.write()
        storage.iter = 10
        printer.write()
    assert [line["eta"] for line in printed()] == ["0:00:00"]


def test_past_max_iter_the_eta_is_not_negative(printed):
    with EventStorage(15) as storage:
        storage.put_scalar("time", 1.0)
        CommonMetricPrinter(max_iter=10).write()
    assert printed()[0]["eta"] == "0:00:00"


def test_the_eta_is_of_the_last_times_also_where_they_are_put_now_and_then(printed):
    with EventStorage() as storage:
        for storage.iter in range(10_001):
            if storage.iter % 200 == 0:
                storage.put_scalar("time", 60.0 if storage.iter == 10_000 else 0.1)
        CommonMetricPrinter(20_001).write()
        assert storage.latest()["eta_seconds"] == (1000.0, 10_000)


def test_without_a_time_the_eta_comes_from_the_time_between_lines(printed):
    printer = CommonMetricPrinter(max_iter=1_000)
    with EventStorage() as storage:
        for storage.iter in (0, 1, 1, 1, 3):
            printer.write()
        assert storage.latest()["eta_seconds"][1] == 3
    assert ["eta" in line for line in printed()] == [False, True, False, False, True]
    assert [line["iter"] for line in printed()] == ["0", "1", "1", "1", "3"]


def test_after_a_rewind_the_time_of_the_pause_is_not_counted(printed):
    printer = CommonMetricPrinter(max_iter=1_000)
    with EventStorage() as storage:
        printer.write()
        printer.rewind(5)
        storage.iter = 5
        printer.write()
    assert ["eta" in line for line in printed()] == [False, False]


def test_losses_are_medians_where_smoothed_and_times_are_means(printed):
    with EventStorage() as storage:
        for storage.iter in range(100):
            outlier = 1000.0 if storage.iter == 99 else 0.0
            storage.put_scalars(loss=storage.iter + outlier, time=storage.iter + outlier)
            storage.put_scalar("val_loss", storage.iter, smoothing_hint=False)
        CommonMetricPrinter(window_size=4).write()
        CommonMetricPrinter().write()
    short, long = printed()
    assert (short["loss"], long["loss"]) == ("97.5", "89.5")
    assert short["val_loss"] == "99"
    assert (short["time"], long["time"]) == ("347.5000", "139.5000")
    assert short["last_time"] == "1099.0000"


def test_the_learning_rate_is_that_of_the_last_step(printed):
    with EventStorage() as storage:
        for storage.iter in range(10):
            storage.put_scalar("lr", 0.1 / 2**storage.iter)
        CommonMetricPrinter().write()
    assert printed()[0]["lr"] == "0.00019531"


def test_a_metric_whose_name_has_loss_in_it_is_shown_once(printed):
    with EventStorage() as storage:
        storage.put_scalar("[metric]val_loss", 2.0)
        CommonMetricPrinter().write()
    assert printed() == [{"iter": "0", "[metric]val_loss": "2"}]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_shown_and_break_nothing(printed, value):
    with EventStorage() as storage:
        storage.put_scalars(loss=value, time=value, data_time=value, lr=value)
        CommonMetricPrinter(max_iter=100).write()
    line = printed()[0]
    assert {line[name] for name in ("loss", "time", "data_time", "lr")} == {str(value)}
    assert "eta" not in line


def test_the_only_loss_of_a_step_is_shown_as_their_sum(printed):
    with EventStorage() as storage:
        storage.put_scalars(total_loss=1.5, loss_cls=1.5)
        storage.put_scalar("test/loss", 0.5, smoothing_hint=False)
        CommonMetricPrinter().write()
    assert printed() == [{"iter": "0", "total_loss": "1.5", "test/loss": "0.5"}]


def test_the_only_loss_is_shown_as_their_sum_though_it_was_another_one_before(printed):
    with EventStorage() as storage:
        for storage.iter in range(4):
            storage.put_scalars(total_loss=storage.iter)
            storage.put_scalar("loss_a" if storage.iter < 2 else "loss_b", storage.iter)
        CommonMetricPrinter(window_size=2).write()
    assert printed() == [{"iter": "3", "total_loss": "2.5"}]


def test_other_names_are_not_shown(printed):
    with EventStorage() as storage:
        storage.put_scalars(acc=1.0, grad_norm=2.0)
        CommonMetricPrinter().write()
    assert printed() == [{"iter": "0"}]


def test_memory_is_shown_where_there_is_a_gpu_in_use(printed, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 300 * 2**20)
    with EventStorage():
        CommonMetricPrinter().write()
    assert printed() == [{"iter": "0", "max_mem": "300M"}]


def test_lines_go_to_its_logger():
    name = CommonMetricPrinter(10).logger.name
    assert re.fullmatch(r"engine(\.\w+)*", name)


@pytest.mark.usefixtures("on_accelerator")
def test_a_line_needs_one_transfer_for_all_it_shows(printed, operations):
    with EventStorage() as storage, operations:
        for storage.iter in range(20):
            storage.put_scalars(loss=torch.tensor(1.0), loss_box=torch.tensor(2.0))
        CommonMetricPrinter(100).write()
    assert printed() == [{"iter": "19", "loss": "1", "loss_box": "2"}]
    assert (operations.conversions, operations.transfers) == (0, 1)


def test_the_result_of_an_evaluation_stands_in_the_line_after_it_and_not_in_later_ones(printed):
    printer = CommonMetricPrinter()
    with EventStorage() as storage:
        for storage.iter in range(60):
            storage.put_scalar("total_loss", 1.0)
            if storage.iter == 19:
                storage.put_scalar("test/loss", 0.5, smoothing_hint=False)
                storage.put_scalar("[metric]AP", 31.0, smoothing_hint=False)
            if (storage.iter + 1) % 20 == 0:
                printer.write()
    assert [list(line) for line in printed()] == [
        ["iter", "total_loss", "test/loss", "[metric]AP"],
        ["iter", "total_loss"],
        ["iter", "total_loss"],
    ]


def test_what_came_since_the_line_before_is_shown_though_the_window_is_shorter(printed):
    printer = CommonMetricPrinter(window_size=2)
    with EventStorage() as storage:
        for storage.iter in range(20):
            if storage.iter % 10 == 3:
                storage.put_scalar("total_loss", storage.iter)
            if (storage.iter + 1) % 10 == 0:
                printer.write()
    assert printed()[-1]["total_loss"] == "13"


def test_one_step_that_took_long_does_not_change_the_time_to_the_end(printed):
    with EventStorage() as storage:
        for storage.iter in range(200):
            storage.put_scalar("time", 36_000.0 if storage.iter == 150 else 0.5)
        CommonMetricPrinter(300).write()
    assert printed()[0]["eta"] == "0:00:50"
    assert storage.latest()["eta_seconds"] == (50.0, 199)


def test_a_run_without_an_end_in_sight_has_a_line(printed):
    with EventStorage() as storage:
        storage.put_scalar("time", 0.5)
        CommonMetricPrinter(2**62).write()
    assert "days" in printed()[0]["eta"]


def test_parts_that_subclasses_for_detectron2_use_are_there():
    printer = CommonMetricPrinter(10)
    with EventStorage() as storage:
        storage.put_scalar("time", 1.0)
        assert printer._get_eta(storage) == "0:00:09"
        assert printer._window_size == 20
        assert printer._last_write is None
    assert CommonMetricPrinter(10, window_size=5)._window_size == 5
    with EventStorage(log_period=7):
        assert printer._window_size == 7
