import logging
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.utils import append_file
from engine.utils.append_file import AppendFile


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """No file of this process grows beyond `size`: the write fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fill(disk: Path) -> None:
    (disk / "others").write_bytes(bytes(disk_usage(disk).free))


def entry(number: int) -> bytes:
    return b"%d " % number * 1000 + b"\n"


def test_an_entry_is_in_the_file_at_once(tmp_path):
    file = AppendFile(str(tmp_path / "new" / "log"))
    for number in range(3):
        file.write(entry(number))
        assert (tmp_path / "new" / "log").read_bytes() == b"".join(map(entry, range(number + 1)))
    file.close()
    file.write(entry(3))
    file.close()
    assert (tmp_path / "new" / "log").read_bytes() == b"".join(map(entry, range(4)))


def test_a_head_is_there_once_and_only_in_a_file_with_entries(tmp_path):
    path = tmp_path / "log"
    for number in range(2):
        file = AppendFile(str(path), head=b"head\n")
        assert path.exists() == (number > 0)
        file.write(b"%d\n" % number)
        file.close()
    assert path.read_bytes() == b"head\n0\n1\n"


def test_a_path_that_cannot_be_is_an_error_for_who_asks_first(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        AppendFile(str(tmp_path / "file" / "log")).open()


def test_what_a_full_disk_did_not_take_is_written_in_order_when_there_is_space(small_disk, log):
    file = AppendFile(str(small_disk / "log"), head=b"head\n")
    file.write(entry(0))
    fill(small_disk)
    for number in range(1, 20):
        file.write(entry(number))
        written = (small_disk / "log").read_bytes()
        assert written == b"head\n" + b"".join(map(entry, range(written.count(b"\n") - 1)))
    (small_disk / "others").unlink()
    assert log.text.count("cannot be written (No space left on device)") == 1
    file.write(entry(20))
    file.write(entry(21))
    assert log.text.count("written again; nothing is lost") == 1
    file.close()
    assert (small_disk / "log").read_bytes() == b"head\n" + b"".join(map(entry, range(22)))


def test_the_close_writes_what_waits(small_disk, log):
    file = AppendFile(str(small_disk / "log"))
    fill(small_disk)
    file.write(entry(0))
    (small_disk / "others").unlink()
    file.close()
    assert (small_disk / "log").read_bytes() == entry(0)
    assert not [record for record in log.records if record.levelno >= logging.ERROR]


def test_what_is_lost_at_the_close_is_an_error_in_the_log_and_ends_nothing(tmp_path, log):
    path = tmp_path / "log"
    file = AppendFile(str(path))
    with files_end_at(0):
        file.write(entry(0))
        file.write(entry(1))
        file.close()
    (error,) = [record for record in log.records if record.levelno >= logging.ERROR]
    assert error.getMessage() == f"{path} lacks 2 entries that could not be written"
    file.write(entry(2))
    file.close()
    assert path.read_bytes() == entry(2)


def test_of_too_many_that_wait_the_oldest_are_dropped(tmp_path, log, monkeypatch):
    monkeypatch.setattr(append_file, "MAX_WAITING", 5 * len(entry(0)))
    file = AppendFile(str(tmp_path / "log"), head=b"head\n")
    with files_end_at(0):
        for number in range(8):
            file.write(entry(number))
    assert log.text.count("the oldest are dropped") == 1
    file.write(entry(8))
    file.close()
    assert "written again; 3 entries are lost" in log.text
    assert (tmp_path / "log").read_bytes() == b"head\n" + b"".join(map(entry, range(3, 9)))


def test_a_folder_that_was_deleted_is_made_again(tmp_path, log):
    file = AppendFile(str(tmp_path / "run" / "log"))
    file.write(entry(0))
    file.close()
    (tmp_path / "run" / "log").unlink()
    (tmp_path / "run").rmdir()
    file.write(entry(1))
    file.close()
    assert (tmp_path / "run" / "log").read_bytes() == entry(1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=30), st.none() | st.integers(0, 60))))
def test_however_often_the_disk_is_full_the_entries_are_there_once_and_in_order(writes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log")
        file = AppendFile(str(path), head=b"head")
        wholes = [b"head"]
        for data, space in writes:
            wholes.append(wholes[-1] + data)
            with files_end_at(10**6 if space is None else space):
                file.write(data)
            if path.exists():
                assert path.read_bytes() in (b"", *wholes)
        file.write(b"end")
        file.close()
        assert path.read_bytes() == wholes[-1] + b"end"


@pytest.mark.parametrize("become_of", [Path.unlink, lambda path: path.rename(f"{path}.1")])
def test_a_file_that_was_deleted_or_moved_is_begun_anew(tmp_path, log, become_of):
    path = tmp_path / "log"
    file = AppendFile(str(path), head=b"head\n")
    file.write(entry(0))
    become_of(path)
    file.write(entry(1))
    file.write(entry(2))
    file.close()
    assert path.read_bytes() == b"head\n" + entry(1) + entry(2)
    assert log.text.count(f"{path} was deleted or moved: it is begun anew") == 1
