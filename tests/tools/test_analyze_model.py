import os
from pathlib import Path

import pytest

CONFIG = Path(__file__).parents[2] / "configs" / "digits" / "mlp.yaml"


def test_parameters_flops_activations_and_structure_are_printed(run_tool, capsys):
    run_tool("analyze_model.py", "--config-file", CONFIG, "TEST.BATCH_SIZE", "1")
    printed = capsys.readouterr().out
    for line in (
        "| layers.1.weight | (256, 64)",  # parameters
        "parameters 85 K | FLOPs 84.5 K",  # FLOPs
        "| linear     |",  # activations
        "(1): Linear(in_features=64, out_features=256, bias=True)",  # structure
    ):
        assert line in printed


def test_one_task_prints_one_thing(run_tool, capsys):
    run_tool("analyze_model.py", "--config-file", CONFIG, "--tasks", "structure")
    assert "Linear(in_features=64" in (printed := capsys.readouterr().out)
    assert "FLOPs" not in printed


def test_what_it_prints_may_be_read_in_part(start_tool):
    reader, writer = os.pipe()
    os.close(reader)
    done = start_tool("analyze_model.py", "--config-file", CONFIG, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mistake_is_one_line(run_tool):
    with pytest.raises(SystemExit, match=r"unknown key MODEL\.ARG"):
        run_tool("analyze_model.py", "--config-file", CONFIG, "MODEL.ARG.hidden=3")
    with pytest.raises(SystemExit, match=r"DATASETS\.TEST is empty"):
        run_tool("analyze_model.py", "--config-file", CONFIG, "DATASETS.TEST=[]")
