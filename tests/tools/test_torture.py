import random
import re
import runpy
import signal
from pathlib import Path

import pytest

from engine.config import CfgNode

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "digits" / "cnn.yaml"


@pytest.fixture(scope="module")
def torture():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")  # as for a script that is started
        return runpy.run_path(str(ROOT / "tools" / "torture.py"), run_name="torture")


def test_the_seed_repeats_the_moments(torture):
    def moments(seed):
        rng = random.Random(seed)
        return [torture["draw_moment"](rng, {"start-up": 1, "training": 2}) for _ in range(200)]

    assert moments(1) == moments(1) != moments(2)
    assert {moment.name for moment in moments(1)} == set(torture["MOMENTS"])
    assert 0.3 < sum(moment.name == "save" for moment in moments(1)) / 200 < 0.6


def counts(text):
    """The first number of each row of the tables."""
    return {name: int(n) for name, n in re.findall(r"^(\w[\w -]*?) {2,}(\d+)", text, re.MULTILINE)}


def test_a_run_that_was_killed_six_times_cannot_be_told_from_one_that_was_not(start_tool):
    done = start_tool("torture.py", "--kills", 6, "--config-file", CONFIG)
    assert done.returncode == 0, done.stdout + done.stderr
    found = counts(done.stdout)
    assert found["all"] == 6
    assert found["bits that differ"] == found["iterations doubled"] == 0
    assert found["runs compared"] >= 1


@pytest.mark.slow
def test_kills_with_more_switched_on_cannot_be_seen_either(start_tool):
    done = start_tool(
        "torture.py", "--kills", 12, "--seed", 1, "--config-file", CONFIG,
        "SOLVER.ACCUMULATE=2", "DATALOADER.NUM_WORKERS=1",
        "EARLY_STOPPING.METRIC=+classification/accuracy", "EARLY_STOPPING.PATIENCE=50",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"^all +12 +(\d+)", done.stdout, re.MULTILINE)[1]) >= 1  # inside a save


@pytest.mark.slow
def test_runs_that_differ_are_kept_and_what_differs_is_named(start_tool, tmp_path):
    done = start_tool(
        "torture.py", "--kills", 1, "--jobs", 1, "--config-file", CONFIG,
        "--output-dir", tmp_path / "runs", "SEED", -1, "MODEL.ARGS.width=4",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert counts(done.stdout)["bits that differ"] > 100
    assert ".pth/model/layers.0.weight" in done.stdout
    assert (tmp_path / "runs" / "victim_000" / "model_final.pth").exists()


def test_a_mistyped_override_is_one_message(start_tool):
    failed = start_tool("torture.py", "--config-file", CONFIG, "SOLVER.BASE_LRR=1")
    assert failed.returncode == 1
    assert failed.stderr.startswith("ConfigError: command line: unknown key SOLVER.BASE_LRR")


def test_no_kills_and_a_folder_that_cannot_be_made_are_refused(start_tool, tmp_path):
    failed = start_tool("torture.py", "--config-file", CONFIG, "--kills", 0)
    assert failed.returncode == 2
    assert "--kills must be 1 or more: without a kill there is nothing" in failed.stderr
    (tmp_path / "file").touch()
    failed = start_tool("torture.py", "--config-file", CONFIG, "--output-dir", tmp_path / "file")
    assert failed.returncode == 1
    assert failed.stderr == (
        f"{tmp_path}/file/reference cannot be made (Not a directory): name another --output-dir\n"
    )


def test_a_config_that_may_not_be_read_is_one_line(run_tool, tmp_path, monkeypatch):
    def refuse(self, path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(CfgNode, "merge_from_file", refuse)  # root may read all files
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit, match=r"^PermissionError: .*Permission denied: 'cfg.yaml'$"):
        run_tool("torture.py", "--config-file", "cfg.yaml")
