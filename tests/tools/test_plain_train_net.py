import json
import math

import pytest
import torch


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
    assert "Training from iteration 20 to 60" in (out / "log.txt").read_text()
    assert "Accuracy on the test set" in (out / "log.txt").read_text()


@pytest.fixture
def refusal(run_tool):
    """Runs the script; returns the one line that it ends with."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            run_tool("plain_train_net.py", *arguments)
        assert "\n" not in str(ended.value.code)
        return ended.value.code

    return run


def test_mistakes_are_one_line(run_tool, refusal, tmp_path, capsys):
    file, out = tmp_path / "file", tmp_path / "out"
    file.touch()
    assert f"{file} cannot be made (File exists): name another" in refusal("--output-dir", file)
    assert "cannot be made (Not a directory)" in refusal("--output-dir", file / "below")
    assert refusal("--output-dir", out, "--max-iter", 0) == 2
    assert "--max-iter must be 1 or more, got 0" in capsys.readouterr().err
    assert not out.exists()
    run_tool("plain_train_net.py", "--output-dir", out, "--max-iter", 1)
    (out / "model_0000000.pth").write_bytes(b"damaged")
    assert "model_0000000.pth cannot be loaded" in refusal("--output-dir", out, "--resume")


def test_the_run_of_another_program_is_not_resumed(run_tool, refusal, tmp_path):
    out = tmp_path / "out"
    run_tool("plain_train_net.py", "--output-dir", tmp_path / "own", "--max-iter", 1)
    own = torch.load(tmp_path / "own" / "model_0000000.pth", weights_only=True)
    out.mkdir()
    others = {"model": own["model"], "trainer": {}, "iteration": 9}
    torch.save(others, out / "model_final.pth")
    (out / "last_checkpoint").write_text("model_final.pth")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert refusal("--output-dir", out, "--resume").startswith("CheckpointError: ")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
