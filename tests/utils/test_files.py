import errno
import os
import resource
import stat

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.utils.files import PathHandler, PathManager, atomic_write


def test_written_bytes_are_there(tmp_path):
    with atomic_write(tmp_path / "a") as file:
        file.write(b"new")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r")))
def test_any_text_comes_back(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("text") / "a"
    with atomic_write(path, "w") as file:
        file.write(text)
    assert path.read_text(encoding="utf-8") == text


def test_other_users_may_read_it_as_usual(tmp_path):
    (tmp_path / "plain").touch()
    with atomic_write(tmp_path / "atomic"):
        pass
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "atomic")}
    assert len(modes) == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_the_old_file_stays_and_nothing_else(tmp_path, error):
    (tmp_path / "a").write_bytes(b"old")

    def fail_halfway():
        with atomic_write(tmp_path / "a") as file:
            file.write(b"new")
            raise error

    with pytest.raises(error):
        fail_halfway()
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "disk" / "a")
    with atomic_write(tmp_path / "a") as file:
        file.write(b"new")
    assert (tmp_path / "a").is_symlink()
    assert (tmp_path / "disk" / "a").read_bytes() == b"new"


def test_a_folder_is_not_replaced(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError), atomic_write(tmp_path / "a"):
        pass
    assert os.listdir(tmp_path) == ["a"]


def test_appending_is_refused(tmp_path):
    with pytest.raises(ValueError, match="got 'ab'"), atomic_write(tmp_path / "a", "ab"):
        pass


@pytest.fixture
def small_disk():
    """Files of this process cannot grow beyond 100 kB: the write fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def save_large(file):
    torch.save({"weight": torch.zeros(100_000)}, file)


def write_large(file):
    file.write(b"0" * 400_000)


def write_large_and_hide_the_error(file):
    with pytest.raises(OSError, match="File too large"):
        file.write(b"0" * 400_000)


@pytest.mark.parametrize("write", [save_large, write_large, write_large_and_hide_the_error])
def test_a_full_disk_is_reported_as_such_and_the_old_file_stays(tmp_path, small_disk, write):
    (tmp_path / "a").write_bytes(b"old")
    with (
        pytest.raises(OSError, match="File too large") as caught,
        atomic_write(tmp_path / "a") as f,
    ):
        write(f)
    assert caught.value.errno == errno.EFBIG
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_missing_folder_is_the_usual_error(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "no" / "a"):
        pass


def test_file_and_folder_are_synced_around_the_rename(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor):
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def noted_replace(*paths):
        calls.append("rename")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    with atomic_write(tmp_path / "a") as file:
        file.write(b"new")
    assert calls == ["file", "rename", "folder"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_only_a_file_system_without_folder_sync_is_forgiven(tmp_path, monkeypatch, code):
    fsync = os.fsync

    def failing_for_folders(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    def write():
        with atomic_write(tmp_path / "a") as file:
            file.write(b"new")

    monkeypatch.setattr(os, "fsync", failing_for_folders)
    if code == errno.EINVAL:
        write()
    else:
        with pytest.raises(OSError, match="Input/output error"):
            write()
    assert (tmp_path / "a").read_bytes() == b"new"


def test_paths_are_local_until_a_handler_is_registered(tmp_path):
    with PathManager.open(str(tmp_path / "a"), "w") as file:
        file.write("hello")
    assert PathManager.ls(str(tmp_path)) == ["a"]
    assert PathManager._path_handlers == {}


def test_a_user_may_register_a_scheme(tmp_path, monkeypatch):
    class Runs(PathHandler):
        def _get_supported_prefixes(self):
            return ["runs://"]

        def _get_local_path(self, path, force=False, **kwargs):
            return str(tmp_path / path.removeprefix("runs://"))

    monkeypatch.setattr(PathManager, "_path_handlers", {})
    PathManager.register_handler(Runs())
    assert PathManager.get_local_path("runs://1/log.txt") == str(tmp_path / "1/log.txt")
