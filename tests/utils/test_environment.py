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

from engine.utils import environment
from engine.utils.environment import (
    TORCH_VERSION,
    collect_env_info,
    copy_code,
    git_state,
    seed_all_rng,
)


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


def test_the_version_of_torch_compares_as_numbers():
    assert (1, 9) < TORCH_VERSION == tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))


def test_the_module_is_a_command():
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.check_output(
        [sys.executable, "-m", "engine.utils.environment"], env=variables, text=True
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


def copied(folder):
    """The files in a folder, with what they hold."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


@pytest.fixture
def changed_code(repository, tmp_path):
    """A repository with a changed file, new ones, and some that are not code or ignored."""
    (tmp_path / ".gitignore").write_text("ignored.py\n")
    repository("add", ".")
    repository("commit", "-m", "first")
    (tmp_path / "model.py").write_text("depth = 2\n")
    for name in ("ignored.py", "weights.pth", "sub/new.py", "run/code_20260101_120000/old.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_code_that_git_does_not_know_is_copied(changed_code, tmp_path_factory):
    target = tmp_path_factory.mktemp("target")
    copy_code(str(target), changed_code / "sub")
    assert copied(target) == {"untracked/sub/new.py": "sub/new.py"}


def test_all_code_is_copied_on_request_as_it_is(changed_code, tmp_path_factory):
    target = tmp_path_factory.mktemp("target")
    copy_code(str(target), changed_code / "sub", whole=True)
    assert copied(target) == {"all/model.py": "depth = 2\n", "all/sub/new.py": "sub/new.py"}


@pytest.mark.parametrize("has_git", [True, False])
def test_without_a_repository_the_code_of_the_folder_is_copied_on_request(
    has_git, tmp_path, tmp_path_factory, monkeypatch
):
    monkeypatch.delenv("GIT_DIR", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    if not has_git:
        monkeypatch.setenv("PATH", str(tmp_path))
    for name in (
        "train.py",
        "sub/model.py",
        "image.png",
        ".venv/lib.py",
        "code_20260101_120000/a.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    target = tmp_path_factory.mktemp("target")
    copy_code(str(target), tmp_path)
    assert copied(target) == {}
    copy_code(str(target), tmp_path, whole=True)
    assert copied(target) == {"all/train.py": "train.py", "all/sub/model.py": "sub/model.py"}


def test_more_code_than_is_copied_is_told(tmp_path, tmp_path_factory, monkeypatch, caplog):
    monkeypatch.setattr(environment, "MOST_FILES", 2)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for name in "abc":
        (tmp_path / f"{name}.py").touch()
    target = tmp_path_factory.mktemp("target")
    copy_code(str(target), tmp_path, whole=True)
    assert len(copied(target)) == 2
    assert "Of 3 files of code the first 2 are copied" in caplog.text
