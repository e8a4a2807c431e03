import json


def test_it_trains_resumes_and_leaves_metrics(run_tool, tmp_path):
    out = tmp_path / "out"
    run_tool("plain_train_net.py", "--output-dir", out, "--max-iter", 40)
    assert (out / "model_0000039.pth").exists()
    run_tool("plain_train_net.py", "--output-dir", out, "--max-iter", 60, "--resume")
    assert (out / "model_0000059.pth").exists()
    lines = [json.loads(line) for line in (out / "metrics.json").read_text().splitlines()]
    iterations = [line["iteration"] for line in lines]
    assert iterations == sorted(set(iterations))
    assert lines[-1]["test/accuracy"] > 50  # a guess has 10
    assert lines[-1]["lr"] < 0.001  # its schedule is that of the longer run
    assert "Resumed from" in (out / "log.txt").read_text()
    assert "Accuracy on the test set" in (out / "log.txt").read_text()
