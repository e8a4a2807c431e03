import json

import pytest

from engine.config import ConfigError
from engine.report import read_runs

ENVIRONMENT = """\
------------------  ------------------
platform            Linux
torch               2.13.0 (/somewhere/torch)
CUDA                available
cuda:0              NVIDIA A100, 80.0 GiB, sm_80
cuda:1              NVIDIA A100, 80.0 GiB, sm_80
MPS                 not available
------------------  ------------------
"""


def test_the_heading_tells_when_where_and_how_far(make_run):
    folder = make_run(
        "first",
        [{"iteration": 19, "loss": 1.0}],
        config_yaml="SOLVER: {MAX_ITER: 100}",
        environment_txt=ENVIRONMENT,
        command_txt="2026-11-17 06:10:51  train\n2026-11-17 09:00:00  train --eval-only\n",
    )
    (folder / "code_20261117_061051").mkdir()
    git = {"commit": "4a35ca417bb14e11", "status": " M a.py"}
    (folder / "code_20261117_061051" / "git.json").write_text(json.dumps(git))
    (run,) = read_runs([folder])
    assert run.name == "first"
    assert run.facts.pop("last metrics").startswith("20")
    assert run.facts == {
        "folder": str(folder),
        "started": "2026-11-17 06:10:51",
        "iteration": "19 of 100, not finished",
        "torch": "2.13.0",
        "device": "2 × NVIDIA A100, 80.0 GiB, sm_80",
        "commit": "4a35ca417b with changes",
    }


@pytest.mark.parametrize(
    ("last", "checkpoint", "expected"),
    [
        (100, "model_final.pth", "100 of 100, finished"),  # with the results of the end
        (99, "model_final", "99 of 100, finished"),
        (119, "model_final.pth", "119 of 100, not finished"),  # trained further since
        (59, "model_0000049.pth", "59 of 100, not finished"),
        (59, "(none yet)", "59 of 100, not finished"),
        (59, "", "59 of 100, not finished"),
        (99, "", "99 of 100"),  # nothing tells whether there is more to come
    ],
)
def test_whether_a_run_is_finished_follows_from_its_last_checkpoint(
    make_run, last, checkpoint, expected
):
    manifest = {"checkpoints": {"model_final.pth": {"iteration": 99, "size": 1, "sha256": ""}}}
    folder = make_run(
        "run",
        [{"iteration": last, "loss": 1.0}],
        config_yaml="train: {max_iter: 100}",
        last_checkpoint=checkpoint,
    )
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert read_runs([folder])[0].facts["iteration"] == expected


def test_epochs_are_not_taken_for_iterations(make_run):
    folder = make_run(
        "run", [{"iteration": 440, "loss": 1.0}], config_yaml="SOLVER: {MAX_ITER: 20 epoch}"
    )
    assert read_runs([folder])[0].facts["iteration"] == "440 (run of 20 epoch)"


def test_a_run_that_has_written_nothing_yet_is_shown(make_run):
    (run,) = read_runs([make_run("new", [])])
    assert run.facts["iteration"] == "no metrics yet"
    assert (run.curves, run.config) == ({}, "")


def test_runs_of_one_name_are_told_apart_by_their_paths(make_run):
    folders = [make_run(name, [{"iteration": 0, "a": 1}]) for name in ("x/run", "y/run", "other")]
    assert [run.name for run in read_runs(folders)] == ["x/run", "y/run", "other"]
    assert [run.name for run in read_runs(folders[1:])] == ["run", "other"]


def test_the_points_of_a_page_are_bounded(make_run, monkeypatch):
    monkeypatch.setattr("engine.report.runs.MOST_POINTS", 1600)
    rows = [{"iteration": at, **{f"m{i}": at % 7 for i in range(10)}} for at in range(500)]
    runs = read_runs([make_run("a", rows), make_run("b", rows)])
    assert sum(len(curve.points) for run in runs for curve in run.curves.values()) <= 1600


def test_folders_that_are_no_runs_are_refused_with_what_to_do(make_run, tmp_path):
    run = make_run("run", [])
    with pytest.raises(NotADirectoryError, match="nowhere is not a folder: give the OUTPUT_DIR"):
        read_runs([tmp_path / "nowhere"])
    with pytest.raises(FileNotFoundError, match=r"metrics\.json is not there: give the OUTPUT_DIR"):
        read_runs([tmp_path])
    with pytest.raises(ValueError, match="run is given twice"):
        read_runs([run, run / ".." / "run"])


def test_a_broken_config_is_named(make_run):
    with pytest.raises(ConfigError, match=r"config\.yaml, line 1: not valid YAML"):
        read_runs([make_run("run", [], config_yaml="a: [")])
