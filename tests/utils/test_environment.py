import logging
import os
import random
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.utils.environment import collect_env_info, git_state, seed_all_rng


def test_the_report_names_versions_devices_and_variables(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    report = collect_env_info()
    rows = dict(re.findall(r"^(\S.*?) {2,}(.*)$", report, re.MULTILINE))
    assert rows["torch"].startswith(torch.__version__)
    assert rows["numpy"] == np.__version__
    assert rows["OMP_WAIT_POLICY"] == "passive"
    assert rows["RANK"] == "3"
    assert {"platform", "Python", "fvcore", "iopath", "tensorboard", "CPUs"} <= set(rows)
    assert {rows[device] for device in ("CUDA", "MPS", "XPU")} <= {"available", "not available"}
    assert "s3cret" not in report


def test_the_module_is_a_command():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.check_output(
        [sys.executable, "-m", "engine.utils.environment"], env=environment, text=True
    )
    assert torch.__version__ in output


def draw():
    return torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()


@given(seed=st.integers(0, 2**40))
def test_the_same_seed_gives_the_same_numbers(seed):
    assert seed_all_rng(seed) == seed
    first = draw()
    seed_all_rng(seed)
    assert draw() == first


@pytest.mark.parametrize("no_seed", [None, -1])
def test_no_seed_means_another_one_each_time_and_it_is_told(no_seed, caplog):
    caplog.set_level(logging.INFO)
    seeds = {seed_all_rng(no_seed) for _ in range(3)}
    assert len(seeds) == 3
    for seed in seeds:
        assert seed >= 0
        assert str(seed) in caplog.text


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A folder with a git repository; call it to run a git command there."""
    for variable in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    def git(*command):
        identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--initial-branch=work")
    (tmp_path / "model.py").write_text("depth = 1\n")
    return git


def test_the_state_of_the_code_is_commit_status_and_diff(repository, tmp_path):
    repository("add", ".")
    repository("commit", "-m", "first")
    clean = git_state(tmp_path)
    assert len(clean["commit"]) == 40
    assert (clean["branch"], clean["status"], clean["diff"]) == ("work", "", "")

    (tmp_path / "model.py").write_text("depth = 2\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "new.py").touch()
    dirty = git_state(tmp_path / "sub")
    assert dirty["commit"] == clean["commit"]
    assert dirty["status"].splitlines() == [" M model.py", "?? sub/"]
    assert "-depth = 1\n+depth = 2\n" in dirty["diff"]


def test_a_repository_without_a_commit_has_a_status(repository, tmp_path):
    state = git_state(tmp_path)
    assert (state["commit"], state["diff"]) == ("", "")
    assert state["status"] == "?? model.py\n"


def test_outside_a_repository_the_reason_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv("GIT_DIR", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "not a git repository" in git_state(tmp_path)["error"]


def test_without_git_the_reason_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git" in git_state(tmp_path)["error"]
