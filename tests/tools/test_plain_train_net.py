import json
import math

import pytest


def test_it_trains_resumes_and_leaves_metrics(run_tool, tmp_path):
    out = tmp_path / "out"
    run_tool("plain_train_net.py", "--output-dir", out, "--max-iter", 20)
    assert (out / "model_0000019.pth").exists()
    run_tool("plain_train_net.py", "--output-dir", out, "--max-iter", 60, "--resume")
    assert (out / "model_0000059.pth").exists()
    lines = [json.loads(line) for line in (out / "metrics.json").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [19, 39, 59]
    assert lines[-1]["test/accuracy"] > 50  # a guess has 10
    # The schedule is that of the longer run, though the shorter one was at its end.
    assert lines[1]["lr"] == pytest.approx(0.1 * (1 + math.cos(math.pi * 39 / 60)) / 2)
    assert "Resumed from" in (out / "log.txt").read_text()
    assert "Accuracy on the test set" in (out / "log.txt").read_text()
