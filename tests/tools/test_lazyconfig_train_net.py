import json
from pathlib import Path

import pytest
import torch

CONFIG = Path(__file__).parents[2] / "configs" / "digits" / "lazy_mlp.py"
SHORT = (
    "train.max_iter=20",
    "train.eval_period=10",
    "train.log_period=1",
    "train.checkpointer.period=10",
    "model.hidden=16",
)


@pytest.fixture
def train(run_tool, tmp_path):
    """Runs the script with the digits' config into a folder; returns what it logged."""

    def run(*arguments, to="out"):
        folder = tmp_path / to
        options = [*SHORT, f"train.output_dir={folder}", *arguments]
        run_tool("lazyconfig_train_net.py", "--config-file", CONFIG, *options)
        return (folder / "log.txt").read_text()

    return run


def weights(folder):
    return torch.load(folder / "model_final.pth", weights_only=True)["model"]


def test_it_trains_evaluates_and_saves_what_the_config_says(train, tmp_path):
    text = train()
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"config.yaml", "metrics.json", "model_0000009.pth", "model_final.pth"}
    assert "copypaste: accuracy,loss" in text
    assert weights(tmp_path / "out")["layers.1.weight"].shape == (16, 64)


def test_a_mistake_is_one_line(train, run_tool):
    with pytest.raises(SystemExit, match=r"ConfigError: .*train.max_iterr.*"):
        train("train.max_iterr=3")
    with pytest.raises(SystemExit, match="FileNotFoundError: config file nowhere"):
        run_tool("lazyconfig_train_net.py", "--config-file", "nowhere.py")


def test_a_resumed_run_ends_with_the_same_weights(train, tmp_path):
    train(to="straight")
    train()
    for name in ("model_final.pth", "model_0000019.pth", "last_checkpoint"):
        (tmp_path / "out" / name).unlink()
    text = train("--resume")
    assert "Resumed from" in text
    assert "Starting training from iteration 10" in text
    for name, value in weights(tmp_path / "straight").items():
        assert torch.equal(weights(tmp_path / "out")[name], value)
    lines = (tmp_path / "out" / "metrics.json").read_text().splitlines()
    iterations = [json.loads(line)["iteration"] for line in lines]
    assert iterations[:20] == list(range(20))


def test_eval_only_evaluates_the_given_weights(train, tmp_path):
    def last_results(text):
        return [line for line in text.splitlines() if "copypaste" in line][-1].split()[-1]

    trained = last_results(train())
    weights_file = tmp_path / "out" / "model_final.pth"
    text = train("--eval-only", f"train.init_checkpoint={weights_file}", to="eval")
    assert last_results(text) == trained
    assert not (tmp_path / "eval" / "model_final.pth").exists()
    assert last_results(train("--eval-only", "--resume")) == trained


def test_mixed_precision_is_switched_by_an_override(train, tmp_path):
    train("train.amp.enabled=True", "train.max_iter=2")
    state = torch.load(tmp_path / "out" / "model_final.pth", weights_only=True)
    assert "grad_scaler" in state["trainer"]
