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
    assert json.loads((tmp_path / "out" / "results.json").read_text())["classification"]
    assert weights(tmp_path / "out")["layers.1.weight"].shape == (16, 64)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.max_iterr=3", "set train.max_iterr: there is no such key; did you mean train.max_"),
        ("train.max_iter=abc", "cannot set train.max_iter: it is 20, not a word like 'abc'"),
        ("train.max_iter=3ab", "expected a number of iterations or '2 epoch', got '3ab'"),
        ("train.max_iter=-4", "train.max_iter: expected 1 iteration or more, got -4"),
        ("train.device=gpu", "train.device: 'gpu' is no device; use 'auto'"),
        ("train.float32_precision=low", "train.float32_precision is 'low'; use 'highest'"),
        ("optimizer.lr=abc", "cannot set optimizer.lr: it is 0.1, not a word like 'abc'"),
        ("lr_multiplier._target_=builtins.dict", "must be a ParamScheduler of fvcore.*: got {"),
        ("lr_multiplier._target_=torch.optim.lr_scheduler.StepLR", "fvcore.*: StepLR.__init__"),
    ],
)
def test_a_wrong_override_is_one_line(train, override, message):
    with pytest.raises(SystemExit, match=rf"^ConfigError: .*{message}.*$"):
        train(override)


def test_a_wrong_config_is_one_line(run_tool, tmp_path):
    def refusal(*arguments):
        with pytest.raises(SystemExit) as ended:
            run_tool("lazyconfig_train_net.py", *arguments)
        assert "\n" not in ended.value.code
        return ended.value.code

    def refusal_of(text):
        (tmp_path / "cfg.py").write_text(text)
        return refusal("--config-file", tmp_path / "cfg.py")

    text = CONFIG.read_text()
    assert "name a config: --config-file" in refusal()
    assert "is a config for tools/train_net.py" in refusal(
        "--config-file", CONFIG.with_name("mlp.yaml")
    )
    assert "config file nowhere.py does not exist" in refusal("--config-file", "nowhere.py")
    assert "cfg.py, line 1: invalid syntax: train = = 5" in refusal_of("train = = 5")
    assert "defines no model" in refusal_of("")
    assert "defines no train.max_iter" in refusal_of(text.replace("max_iter", "iterations"))
    no_optimizer = text.replace("optimizer =", "optimiser =")
    assert "no optimizer.params; did you mean optimiser?" in refusal_of(no_optimizer)


def test_a_config_says_only_what_differs_from_the_defaults(run_tool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_models.py").write_text("from engine.zoo.digits import DigitsMLP as Model\n")
    text = CONFIG.read_text().replace(
        "engine.zoo.digits import DigitsMLP", "my_models import Model"
    )
    text = text.replace("DigitsMLP", "Model")
    text = text[: text.index("train = {")] + 'train = {"max_iter": "1 epoch"}\n'
    (tmp_path / "cfg.py").write_text(text)
    run_tool("lazyconfig_train_net.py", "--config-file", "cfg.py", "train.log_period=11")
    lines = (tmp_path / "output" / "metrics.json").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [10, 21, 22]
    assert "init_checkpoint: ''" in (tmp_path / "output" / "config.yaml").read_text()


def test_a_key_that_looks_like_one_of_ours_is_warned_of(train):
    log = train("+train.log_perod=5", "+train.my_own=1", "train.max_iter=2")
    assert "Nothing here reads train.log_perod; did you mean log_period" in log
    assert "Nothing here reads train.my_own" not in log


def test_help_is_about_python_configs(run_tool, capsys):
    with pytest.raises(SystemExit):
        run_tool("lazyconfig_train_net.py", "--help")
    text = capsys.readouterr().out
    assert "Train or evaluate what a Python config describes." in text
    assert "optimizer.lr=0.01" in text
    assert not any(word in text for word in ("YAML", "SOLVER", "MODEL.WEIGHTS", "KEY VALUE"))


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
    results = (tmp_path / "out" / "results.json").read_text()
    assert last_results(train("--eval-only", "--resume")) == trained
    assert (tmp_path / "out" / "evaluation.json").read_text() == results


def test_eval_only_without_weights_is_warned_of_or_refused(train):
    assert "No weights are given (train.init_checkpoint, or --resume)" in train("--eval-only")
    with pytest.raises(SystemExit, match=r"^MissingCheckpointError: .* no checkpoint in .*/out:"):
        train("--eval-only", "--resume")


def test_a_run_is_not_resumed_to_fewer_iterations_than_are_done(train):
    train()
    with pytest.raises(SystemExit, match=r"train.max_iter is 10, but 20 iterations are done"):
        train("train.max_iter=10", "--resume")


def test_mixed_precision_is_switched_by_an_override(train, tmp_path):
    train("train.amp.enabled=True", "train.max_iter=2")
    state = torch.load(tmp_path / "out" / "model_final.pth", weights_only=True)
    assert "grad_scaler" in state["trainer"]
