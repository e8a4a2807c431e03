import io
import logging
import os
import re
import signal
import subprocess
import sys
import uuid
from contextlib import redirect_stdout
from shutil import disk_usage

import pytest

from engine.utils.append_file import AppendFile
from engine.utils.logger import (
    create_small_table,
    log_every_n,
    log_every_n_seconds,
    log_first_n,
    setup_logger,
)


@pytest.fixture
def name():
    """A logger name of this test's own, without handlers before and after."""
    name = f"test_{uuid.uuid4().hex[:8]}"
    yield name
    logger = logging.getLogger(name)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_goes_to_the_console_and_to_the_file(tmp_path, capsys, name):
    setup_logger(tmp_path, name=name).info("12 images")
    printed = capsys.readouterr().out
    assert re.fullmatch(r"\[\d\d/\d\d \d\d:\d\d:\d\d\] 12 images\n", printed)
    assert (tmp_path / "log.txt").read_text().endswith(f" {name} INFO] 12 images\n")


@pytest.mark.parametrize(("before", "lines"), [("", 1), ("whole\n", 2), ("whole\n[11/19 0", 3)])
def test_a_run_begins_its_lines_after_one_that_was_killed(tmp_path, name, before, lines):
    (tmp_path / "log.txt").write_text(before)
    setup_logger(tmp_path, name=name).info("12 images")
    *old, new = (tmp_path / "log.txt").read_text().splitlines()
    assert (len(old) + 1, "\n".join(old)) == (lines, before.rstrip("\n"))
    assert new.endswith(f" {name} INFO] 12 images")


def test_a_file_name_that_is_no_utf_8_can_be_told(tmp_path, name):
    file = os.fsdecode(b"caf\xe9.png")
    stdout = io.TextIOWrapper(io.BytesIO(), "utf-8")  # as a terminal is; a captured one is not
    with redirect_stdout(stdout):
        setup_logger(tmp_path, name=name).info("cannot read %s", file)
    assert (tmp_path / "log.txt").read_text().endswith("cannot read caf\\udce9.png\n")
    assert stdout.buffer.getvalue().endswith(b"cannot read caf\\udce9.png\n")


def test_the_console_names_the_source_of_a_warning(capsys, name):
    setup_logger(name=name).warning("late")
    assert capsys.readouterr().out.endswith(f" {name} WARNING] late\n")


@pytest.mark.parametrize(
    ("output", "rank", "file"),
    [
        ("out", 0, "out/log.txt"),
        ("out", 3, "out/log.txt.rank3"),
        ("out/run.log", 0, "out/run.log"),
        ("out/run.txt", 1, "out/run.txt.rank1"),
    ],
)
def test_files_are_named_by_output_and_rank(tmp_path, name, output, rank, file):
    setup_logger(str(tmp_path / output), rank, name=name).warning("hello")
    assert "hello" in (tmp_path / file).read_text()


def test_only_rank_0_prints(tmp_path, capsys, name):
    setup_logger(tmp_path, 1, name=name).info("hello")
    assert capsys.readouterr().out == ""


def test_without_stdout_only_the_file_is_written(tmp_path, capsys, name):
    setup_logger(tmp_path, name=name, configure_stdout=False).info("hello")
    assert capsys.readouterr().out == ""
    assert "hello" in (tmp_path / "log.txt").read_text()


def test_two_outputs_print_each_line_once(tmp_path, capsys, name):
    setup_logger(tmp_path / "a", name=name)
    setup_logger(tmp_path / "b", name=name).info("hello")
    assert capsys.readouterr().out.count("hello") == 1
    for folder in "ab":
        assert (tmp_path / folder / "log.txt").read_text().count("hello") == 1


def test_the_same_setup_twice_changes_nothing(tmp_path, capsys, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    handlers = list(setup_logger("out", name=name).handlers)
    logger = setup_logger(f"{tmp_path}/./out/log.txt", name=name)
    assert logger.handlers == handlers
    logger.info("hello")
    assert capsys.readouterr().out.count("hello") == 1
    assert (tmp_path / "out/log.txt").read_text().count("hello") == 1


def test_a_file_is_continued(tmp_path, name):
    (tmp_path / "log.txt").write_text("from the run before\n")
    setup_logger(tmp_path, name=name).info("hello")
    first, second = (tmp_path / "log.txt").read_text().splitlines()
    assert first == "from the run before"
    assert second.endswith("hello")


def test_the_console_follows_a_redirected_stdout(name, monkeypatch):
    logger = setup_logger(name=name)
    monkeypatch.setattr(sys, "stdout", redirected := io.StringIO())
    logger.info("hello")
    assert "hello" in redirected.getvalue()


def test_a_broken_console_does_not_stop_the_run(tmp_path, name, monkeypatch, capsys):
    closed = io.StringIO()
    closed.close()
    logger = setup_logger(tmp_path, name=name)
    monkeypatch.setattr(sys, "stdout", closed)
    logger.info("hello")
    assert "hello" in (tmp_path / "log.txt").read_text()
    assert "closed file" in capsys.readouterr().err


def test_a_terminal_gets_colour_and_the_file_does_not(tmp_path, name, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    setup_logger(tmp_path, name=name).error("hello")
    assert terminal.getvalue().startswith("\033[31m[")
    assert "\033" not in (tmp_path / "log.txt").read_text()


def test_no_color_is_honoured(name, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    setup_logger(name=name).info("hello")
    assert "\033" not in terminal.getvalue()


def test_colour_can_be_switched_off(name, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    setup_logger(name=name)
    setup_logger(name=name, color=False).info("hello")
    assert "\033" not in terminal.getvalue()


@pytest.mark.parametrize(
    ("abbreviation", "shown"), [("t", " t.hooks WARNING]"), ("", " hooks WARNING]")]
)
def test_the_name_can_be_shortened(capsys, name, abbreviation, shown):
    setup_logger(name=name, abbrev_name=abbreviation)
    logging.getLogger(f"{name}.hooks").warning("hello")
    assert shown in capsys.readouterr().out


def test_lines_reach_the_root_logger_only_on_request(caplog, name):
    setup_logger(name=name).info("kept")
    setup_logger(name=name, enable_propagation=True).info("passed on")
    assert caplog.messages == ["passed on"]


def test_a_killed_process_has_written_all_its_lines(tmp_path):
    script = (
        "import os, signal\n"
        "from engine.utils.logger import setup_logger\n"
        f"logger = setup_logger({str(tmp_path)!r})\n"
        "for i in range(100): logger.info('line %d', i)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment)
    assert process.returncode == -signal.SIGKILL
    assert (tmp_path / "log.txt").read_text().splitlines()[-1].endswith("line 99")


def fill(disk):
    (disk / "others").write_bytes(bytes(disk_usage(disk).free))


def test_a_full_disk_gives_one_warning_on_the_console_and_the_file_has_all_lines_later(
    small_disk, own_loggers, capfd
):
    logger = setup_logger(small_disk)
    metrics = AppendFile(str(small_disk / "metrics"))  # warns too, in the same log
    logger.info("line 0")
    fill(small_disk)
    for number in range(1, 1000):
        logger.info("line %d", number)
        metrics.write(b"0" * 100)
    printed = capfd.readouterr()
    assert printed.out.count("log.txt cannot be written (No space left on device)") == 1
    assert printed.out.count("line") == 1000
    assert printed.err == ""
    (small_disk / "others").unlink()
    logger.info("line 1000")
    metrics.close()
    assert capfd.readouterr().out.count("log.txt is written again; nothing is lost") == 1
    text = (small_disk / "log.txt").read_text()
    assert re.findall(r"line (\d+)", text) == [str(number) for number in range(1001)]
    assert text.count("metrics cannot be written") == text.count("metrics is written again") == 1


def test_a_log_that_cannot_be_finished_is_told_on_the_console_alone(
    small_disk, name, own_loggers, capsys
):
    setup_logger()
    logger = setup_logger(small_disk, name=name, configure_stdout=False)
    fill(small_disk)
    logger.info("hello")
    logger.handlers[0].close()
    logger.info("too late")
    assert "log.txt lacks 1 entries that could not be written" in capsys.readouterr().out
    assert (small_disk / "log.txt").read_text() == ""


def test_a_console_on_a_full_disk_is_told_of_once(tmp_path, name, monkeypatch, capsys):
    logger = setup_logger(tmp_path, name=name)
    with open("/dev/full", "w") as full, open(os.devnull, "w") as free:
        monkeypatch.setattr(sys, "stdout", full)
        for number in range(3):
            logger.info("line %d", number)
        os.dup2(free.fileno(), full.fileno())
    assert capsys.readouterr().err.count("No space left on device") == 1
    assert (tmp_path / "log.txt").read_text().count("line") == 3


@pytest.fixture
def lines(name, capsys):
    """Messages printed so far by the logger `name`."""
    setup_logger(name=name)
    return lambda: [line.split("] ", 1)[1] for line in capsys.readouterr().out.splitlines()]


def test_log_first_n_counts_by_line_of_code(name, lines):
    for i in range(4):
        log_first_n(logging.INFO, f"here {i}", 2, name=name)
        log_first_n(logging.INFO, f"there {i}", name=name)
    assert lines() == ["here 0", "there 0", "here 1"]


def test_log_first_n_can_count_by_message(name, lines):
    text = uuid.uuid4().hex
    for _ in range(2):
        log_first_n(logging.INFO, text, name=name, key="message")
    log_first_n(logging.INFO, text, name=name, key="message")
    log_first_n(logging.INFO, text, name=name, key=("caller", "message"))
    assert lines() == [text, text]


def test_log_first_n_refuses_an_unknown_key():
    with pytest.raises(ValueError, match=r"'caller', 'message'.*got 'massage'"):
        log_first_n(logging.INFO, "hello", key="massage")


def test_log_every_n_starts_with_the_first(name, lines):
    for i in range(7):
        log_every_n(logging.INFO, f"{i}", 3, name=name)
    assert lines() == ["0", "3", "6"]


def test_log_every_n_seconds_waits(name, lines):
    for i in range(3):
        log_every_n_seconds(logging.INFO, f"hourly {i}", 3600, name=name)
        log_every_n_seconds(logging.INFO, f"always {i}", 0, name=name)
    assert lines() == ["hourly 0", "always 0", "always 1", "always 2"]


def test_the_calling_module_names_the_logger(caplog):
    log_first_n(logging.WARNING, "hello")
    log_every_n(logging.WARNING, "hello")
    log_every_n_seconds(logging.WARNING, "hello")
    assert {record.name for record in caplog.records} == {__name__}
    assert {record.filename for record in caplog.records} == {"test_logger.py"}


def test_a_small_table_has_one_row():
    header, _, row = create_small_table({"AP": 0.98765, "name": "digits"}).splitlines()
    assert "AP" in header
    assert "0.988" in row
    assert "digits" in row
