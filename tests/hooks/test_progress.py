import fcntl
import logging
import os
import pty
import re
import struct
import sys
import termios
from contextlib import contextmanager
from threading import Thread

import pytest
import torch

from engine import SimpleTrainer, get_event_storage
from engine.events import CommonMetricPrinter
from engine.hooks import CallbackHook, PeriodicWriter, ProgressBar
from engine.parallel import comm
from engine.utils.logger import setup_logger


@contextmanager
def terminal(rows: int = 24, columns: int = 120):
    """Makes stdout a terminal of that size; what it showed is in the list afterwards."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    parts: list[bytes] = []
    shown: list[str] = []
    thread = Thread(target=read_all, args=(reader, parts))
    thread.start()
    try:
        with os.fdopen(writer, "w") as stdout, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", stdout)
            yield shown
    finally:
        thread.join()
        os.close(reader)
        shown.extend(re.split(r"[\r\n]+", b"".join(parts).decode()))


def read_all(descriptor: int, parts: list[bytes]) -> None:
    try:
        while data := os.read(descriptor, 4096):
            parts.append(data)
    except OSError:  # Linux's way to say that the other end is closed
        pass


@pytest.fixture
def logged(tmp_path, monkeypatch):
    """The file that the engine logs to, besides the console."""
    logger = logging.getLogger("engine")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    setup_logger(tmp_path)
    yield tmp_path / "log.txt"
    for handler in logger.handlers:
        handler.close()


def make_trainer(model, batches, *hooks) -> SimpleTrainer:
    trainer = SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.01))
    trainer.register_hooks([ProgressBar(5), PeriodicWriter([CommonMetricPrinter(20)], 5), *hooks])
    return trainer


def progress_lines(text: list[str]) -> list[int]:
    """The iterations of the lines of CommonMetricPrinter."""
    return [int(found[1]) for line in text if (found := re.search(r" iter: (\d+)", line))]


def test_a_terminal_shows_a_bar_and_the_file_gets_the_lines(model, batches, logged):
    with terminal() as shown:
        make_trainer(model, batches).train(0, 20)
    bars = [line for line in shown if "it/s" in line]
    assert "100%|" in bars[-1]
    assert "| 20/20 [" in bars[-1]
    assert re.search(r"loss_fit=\d", bars[-1])
    assert progress_lines(shown) == []
    assert any("Starting training from iteration 0" in line for line in shown)
    assert progress_lines(logged.read_text().splitlines()) == [4, 9, 14, 19]


def test_the_loss_comes_first_where_a_line_is_too_short_for_all(batches, logged):
    class Measuring(torch.nn.Linear):
        def forward(self, batch):
            get_event_storage().put_scalars(first_accuracy=0.5, second_accuracy=0.25)
            return super().forward(batch[0]).square().mean()

    with terminal(columns=80) as shown:
        make_trainer(Measuring(4, 1), batches).train(0, 20)
    bars = [line for line in shown if "it/s" in line]
    assert re.search(r"it/s, total_loss=[^,]+\]", bars[-1]), bars


def test_metrics_that_end_alike_are_shown_under_their_whole_names(model, batches, logged):
    def store(trainer) -> None:
        numbers = {"train/accuracy": 0.5, "test/accuracy": 0.25, "test/acc": 1.0}
        for name, value in numbers.items():
            trainer.storage.put_scalar(name, value)

    with terminal(columns=200) as shown:
        make_trainer(model, batches, CallbackHook(after_step=store)).train(0, 5)
    last = [line for line in shown if "it/s" in line][-1]
    assert "train/accuracy=0.5, test/accuracy=0.25, acc=1" in last


def test_entries_that_a_line_has_no_room_for_are_left_out(model, batches, logged):
    def store(trainer) -> None:
        trainer.storage.put_scalars(a_long_name_of_an_accuracy=0.1235, acc=0.25)

    with terminal(columns=80) as shown:
        make_trainer(model, batches, CallbackHook(after_step=store)).train(0, 5)
    last = [line for line in shown if "it/s" in line][-1]
    assert len(last) <= 80
    assert "a_long_name" not in last
    assert re.search(r"it/s, total_loss=[\d.e-]+(, \w+=[\d.e-]+)*\]$", last)
    assert len(last.split("|")[1]) >= 5


def test_without_a_stdout_there_is_no_bar(model, batches, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    make_trainer(model, batches).train(0, 5)


def test_a_terminal_without_a_size_gets_the_lines(model, batches, logged):
    with terminal(rows=0, columns=0) as shown:
        make_trainer(model, batches).train(0, 20)
    assert progress_lines(shown) == [4, 9, 14, 19]


def test_a_resumed_run_shows_how_far_it_was(model, batches, logged):
    with terminal() as shown:
        make_trainer(model, batches).train(15, 20)
    bars = [line for line in shown if "/20 [" in line]
    assert "| 15/20 [" in bars[0]
    assert "| 20/20 [" in bars[-1]


@pytest.mark.parametrize("fails", [False, True])
def test_after_the_run_the_lines_are_on_the_console_again(model, batches, logged, fails, capsys):
    def after_step(trainer) -> None:
        if fails:
            raise RuntimeError("the step failed")

    trainer = make_trainer(model, batches, CallbackHook(after_step=after_step))
    with terminal():
        if fails:
            with pytest.raises(RuntimeError, match="the step failed"):
                trainer.train(0, 5)
        else:
            trainer.train(0, 5)
    logging.getLogger("engine.events.printer").info("one more line")
    assert "one more line" in capsys.readouterr().out


def test_off_a_terminal_there_are_only_lines(model, batches, logged, capsys):
    make_trainer(model, batches).train(0, 20)
    shown = capsys.readouterr()
    assert "%|" not in shown.out + shown.err
    assert progress_lines(shown.out.splitlines()) == [4, 9, 14, 19]
    assert progress_lines(logged.read_text().splitlines()) == [4, 9, 14, 19]


def test_one_rank_shows_a_bar(model, batches, logged, monkeypatch):
    monkeypatch.setattr(comm, "is_main_process", lambda: False)
    with terminal() as shown:
        make_trainer(model, batches).train(0, 5)
    assert not any("%|" in line for line in shown)
