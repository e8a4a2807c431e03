import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from engine.config import get_cfg
from engine.defaults import DefaultTrainer, default_setup
from engine.utils import claims
from engine.utils.claims import FolderInUseError, claim

HOLD = "from engine.utils.claims import claim\nwith claim('run'):\n    print('held'); input()\n"


@pytest.fixture
def other_run(tmp_path, monkeypatch):
    """Another process that trains in the folder `run`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(claims, "PATIENCE", 0.3)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_run_in_a_folder_is_refused_and_names_the_first(other_run):
    names_it = f"process {other_run.pid} on .* trains in run:"
    with pytest.raises(FolderInUseError, match=names_it), claim("run"):
        pytest.fail("two at once")
    os.mkdir("elsewhere")
    with claim("elsewhere"):
        pass


def test_a_claim_ends_with_its_process_however_that_ends(other_run):
    os.kill(other_run.pid, signal.SIGKILL)
    with claim("run"):
        pass


def test_a_run_that_is_about_to_end_is_waited_for(other_run, monkeypatch, log):
    monkeypatch.setattr(claims, "PATIENCE", 60.0)
    threading.Timer(0.5, other_run.kill).start()
    with claim("run"):
        assert f"Waiting 60 s for process {other_run.pid} on" in log.text


def test_workers_that_outlive_a_killed_run_do_not_hold_its_claim(tmp_path):
    with claim(str(tmp_path)):
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        worker.start()
    with claim(str(tmp_path)):
        assert worker.is_alive()
    worker.kill()
    worker.join()


@pytest.mark.usefixtures("own_loggers")
def test_an_evaluation_may_share_the_folder_of_a_run(other_run):
    cfg = get_cfg()
    cfg.OUTPUT_DIR = "run"
    default_setup(cfg, Namespace(eval_only=True))
    with pytest.raises(FolderInUseError):
        default_setup(cfg, Namespace(eval_only=False))


@contextmanager
def no_file_can_grow():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_on_a_full_disk_a_claim_holds_without_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    code = f"from engine.utils import claims; claims.PATIENCE = 0\n{HOLD}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with ExitStack() as held:
        with no_file_can_grow():
            held.enter_context(claim("run"))
        other = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
    assert "FolderInUseError: another process trains in run:" in other.stderr


@pytest.mark.parametrize("folder", ["", "/proc/nowhere"])
def test_where_nothing_can_be_locked_there_are_no_claims(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with claim(folder):
        assert os.listdir() == []


def test_a_run_that_another_has_overtaken_is_not_begun_anew(other_run, digits_cfg, monkeypatch):
    monkeypatch.setattr(claims, "PATIENCE", 60.0)
    trainer = DefaultTrainer(digits_cfg("OUTPUT_DIR", "run"))
    trainer.resume_or_load(resume=True)

    def save_and_end():
        Path("run", "last_checkpoint").write_text("model_0000099.pth")
        other_run.kill()

    threading.Timer(0.5, save_and_end).start()
    with pytest.raises(FolderInUseError, match=r"another run has saved .* start it again"):
        trainer.train()
