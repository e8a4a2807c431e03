import json
import os
import sys

import pytest
import torch

from engine.config import get_cfg

CONFIG = """
SEED: 0
MODEL:
  META_ARCHITECTURE: engine.zoo.digits:DigitsMLP
  ARGS: {hidden: 16}
DATASETS: {TRAIN: [digits_train], TEST: [digits_test]}
DATALOADER: {NUM_WORKERS: 0}
SOLVER: {MAX_ITER: 20, BASE_LR: 0.1, STEPS: [15], WARMUP_ITERS: 0, CHECKPOINT_PERIOD: 10}
LOG_PERIOD: 1
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "digits.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def train_net(run_tool, config, tmp_path):
    """Runs train_net.py with the config into tmp_path/out; returns what it logged."""

    def run(*arguments):
        run_tool(
            "train_net.py", "--config-file", config, "OUTPUT_DIR", tmp_path / "out", *arguments
        )
        return (tmp_path / "out" / "log.txt").read_text()

    return run


def weights(folder):
    return torch.load(folder / "model_final.pth", weights_only=True)["model"]


def results(folder):
    return json.loads((folder / "results.json").read_text())


def test_a_run_leaves_all_that_is_needed_to_understand_and_repeat_it(
    start_tool, run_tool, config, tmp_path
):
    done = start_tool("train_net.py", "--config-file", config, "OUTPUT_DIR", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {
        "config.yaml",
        "environment.txt",
        "command.txt",
        "log.txt",
        "metrics.json",
        "results.json",
        "last_checkpoint",
        "model_0000009.pth",
        "model_0000019.pth",
        "model_final.pth",
    }
    assert sum(name.startswith("events.out.tfevents") for name in names) == 1
    assert len(list((tmp_path / "out").glob("code_*/git.json"))) == 1
    assert "digits.yaml" in (tmp_path / "out" / "command.txt").read_text()
    assert "| digits_test" in done.stdout
    assert "nothing has read" not in done.stdout

    saved = tmp_path / "out" / "config.yaml"
    run_tool("train_net.py", "--config-file", saved, f"OUTPUT_DIR={tmp_path / 'again'}")
    assert results(tmp_path / "again") == results(tmp_path / "out")
    for name, value in weights(tmp_path / "out").items():
        assert torch.equal(weights(tmp_path / "again")[name], value)


def test_eval_only_gives_the_results_of_the_run(train_net, tmp_path):
    train_net()
    trained = results(tmp_path / "out")
    (tmp_path / "out" / "results.json").unlink()
    train_net("--eval-only", f"MODEL.WEIGHTS={tmp_path / 'out' / 'model_final.pth'}")
    assert results(tmp_path / "out") == trained
    (tmp_path / "out" / "results.json").unlink()
    text = train_net("--eval-only", "--resume", "HOOKS", "[{NAME: EmptyCacheHook}]")
    assert "HOOKS are those of training" in text
    assert results(tmp_path / "out") == trained
    assert f"Resumed from {tmp_path / 'out' / 'model_final.pth'}" in text


@pytest.mark.slow
def test_eval_only_of_a_sharded_model_gives_the_results_of_the_run(train_net, tmp_path):
    sharded = ["--num-gpus", 2, "PARALLEL.STRATEGY", "fsdp"]
    sharded += ["PARALLEL.FSDP.PARAM_DTYPE", "bfloat16", "HOOKS", "[{NAME: EMAHook, DECAY: 0.5}]"]
    train_net(*sharded)
    trained = results(tmp_path / "out")
    (tmp_path / "out" / "results.json").unlink()
    text = train_net("--eval-only", "--resume", *sharded)
    assert results(tmp_path / "out") == trained
    assert "The averaged weights are used" in text


def test_the_config_of_a_run_stays_when_it_is_evaluated_with_other_settings(train_net, tmp_path):
    train_net("SOLVER.MAX_ITER", "1")
    saved = (tmp_path / "out" / "config.yaml").read_text()
    train_net("--eval-only", "--resume", "TEST.BATCH_SIZE", "7")
    assert (tmp_path / "out" / "config.yaml").read_text() == saved
    assert len((tmp_path / "out" / "command.txt").read_text().splitlines()) == 2


def test_resume_after_overrides_continues_the_run(train_net, run_tool, config, tmp_path):
    straight = tmp_path / "straight"
    run_tool("train_net.py", "--config-file", config, f"OUTPUT_DIR={straight}")
    train_net("SOLVER.MAX_ITER", "10")
    text = train_net("--resume")
    assert f"Resumed from {tmp_path / 'out' / 'model_final.pth'}" in text
    assert "Starting training from iteration 10" in text
    for name, value in weights(straight).items():
        assert torch.equal(weights(tmp_path / "out")[name], value)
    lines = (tmp_path / "out" / "metrics.json").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines][:20] == list(range(20))


def test_a_run_out_of_time_asks_to_be_started_again_and_ends_as_if_it_had_had_more(
    train_net, run_tool, config, tmp_path
):
    straight = tmp_path / "straight"
    run_tool("train_net.py", "--config-file", config, f"OUTPUT_DIR={straight}")
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:  # a step is done, however late it is
            train_net("TIME_LIMIT=1s", "--resume")
        assert ended.value.code == 75
    assert not (tmp_path / "out" / "results.json").exists()
    text = train_net("--resume")
    assert "Starting training from iteration 2" in text
    for name, value in weights(straight).items():
        assert torch.equal(weights(tmp_path / "out")[name], value)
    assert results(tmp_path / "out") == results(straight)


def test_resume_with_nothing_there_says_where_it_looked(train_net, tmp_path):
    text = train_net("SOLVER.MAX_ITER=1", "--resume")
    assert f"Nothing to resume: no checkpoint in {tmp_path / 'out'}" in text


def test_overrides_come_as_pairs_and_with_equals_signs(train_net, tmp_path):
    train_net("SOLVER.MAX_ITER", "3", "SOLVER.OPTIMIZER.NAME=AdamW", "SOLVER.BASE_LR=1e-3")
    cfg = get_cfg()
    cfg.merge_from_file(tmp_path / "out" / "config.yaml")
    solver = cfg.SOLVER
    assert (solver.MAX_ITER, solver.OPTIMIZER.NAME, solver.BASE_LR) == (3, "AdamW", 1e-3)


def test_the_config_names_its_trainer(train_net, tmp_path, monkeypatch):
    (tmp_path / "a_project.py").write_text(
        "from engine import DefaultTrainer\n"
        "class Trainer(DefaultTrainer):\n"
        "    @classmethod\n"
        "    def test(cls, cfg, model, evaluators=None):\n"
        "        return {'own': {'score': 1.0}}\n"
    )
    monkeypatch.chdir(tmp_path)
    try:
        train_net("TRAINER", "a_project:Trainer")
    finally:
        sys.modules.pop("a_project", None)
    lines = (tmp_path / "out" / "metrics.json").read_text().splitlines()
    assert json.loads(lines[-1])["own/score"] == 1.0


def test_expected_results_decide_the_exit_code(train_net):
    assert "Results are as expected" in train_net(
        "TEST.EXPECTED_RESULTS", "[[classification, accuracy, 50, 50]]"
    )
    with pytest.raises(SystemExit) as ended:
        train_net(
            "--eval-only", "--resume", "TEST.EXPECTED_RESULTS", "[[classification, loss, 9, 0]]"
        )
    assert ended.value.code == 1


def test_a_mistyped_key_is_one_message_and_exit_code_1(start_tool, config, tmp_path):
    config.write_text(CONFIG + "TEST: {PRECISE_BN: {ENABELD: true}}\n")
    failed = start_tool("train_net.py", "--config-file", config, "OUTPUT_DIR", tmp_path / "out")
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"ConfigError: {config}: unknown key TEST.PRECISE_BN.ENABELD\n")
    assert "did you mean TEST.PRECISE_BN.ENABLED" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "out").exists()


FSDP = ["PARALLEL.STRATEGY=fsdp"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["SOLVER.CLIP_GRADIENTS.CLIP_VAL", "1"], ["SOLVER.CLIP_GRADIENTS.CLIP_VALUE"]),
        (["SOLVER.BASE_LR=fast"], ["SOLVER.BASE_LR is 'fast'", "number"]),
        (["SOLVER.MAX_ITER"], ["SOLVER.MAX_ITER has no value"]),
        (["SOLVER.BASE_LRR=1", "--num-gpus", "2"], ["did you mean SOLVER.BASE_LR?"]),
        (["HOOKS", "[EMAHook]"], ["an entry of HOOKS"]),
        (["TIME_LIMIT=soon"], ["TIME_LIMIT", "'3h50min'", "got 'soon'"]),
        (["MODEL.WEIGHTS=nowhere.pth"], ["MissingCheckpointError", "nowhere.pth"]),
        (["MODEL.META_ARCHITECTURE="], ["MODEL.META_ARCHITECTURE is not set", "--config-file"]),
        (["MODEL.META_ARCHITECTURE=engine.zoo.digits:DigitMLP"], ["did you mean DigitsMLP"]),
        (["DATASETS.TRAIN=[digit_train]"], ["'digit_train'; did you mean digits_train"]),
        (["SOLVER.OPTIMIZER.NAME=AdamWW"], ["'AdamWW'; did you mean AdamW"]),
        (["SOLVER.LR_SCHEDULER_NAME=WarmupCosine"], ["did you mean WarmupCosineLR"]),
        (["SOLVER.NONFINITE=skp"], ["SOLVER.NONFINITE is 'skp'", "'raise', 'skip', 'ignore'"]),
        (["PARALLEL.STRATEGY=DDP"], ["PARALLEL.STRATEGY is 'DDP'", "'ddp', 'fsdp', 'none'"]),
        (["PARALLEL.SYNC_BN=null"], ["PARALLEL.SYNC_BN is None", "true or false"]),
        (["PARALLEL.FSDP.SHARD_CLASSES=null"], ["PARALLEL.FSDP.SHARD_CLASSES is None", "a list"]),
        ([*FSDP, "PARALLEL.FSDP.SHARD_CLASSES=[1]"], ["FSDP.SHARD_CLASSES:", "class 1 (there are"]),
        ([*FSDP, "PARALLEL.FSDP.SHARD_CLASSES=[[Linear]]"], ["FSDP.SHARD_CLASSES:", "['Linear']"]),
        (
            [*FSDP, "PARALLEL.FSDP.SHARD_CLASSES=[Linar]"],
            ["StrategyError: PARALLEL.FSDP.SHARD_CLASSES: ", "'Linar'; did you mean Linear?"],
        ),
        (["FLOAT32_PRECISION=hi"], ["FLOAT32_PRECISION is 'hi'", "'highest', 'high'"]),
        (["SOLVER.ACCUMULATE=0"], ["SOLVER.ACCUMULATE is 0", "1 or more"]),
        (["EMA.DECAY=1.5"], ["EMA.DECAY is 1.5", "0 or more, at most 1"]),
        (["SOLVER.LR_SCHEDULER_NAME=WarmupMultiStepLR", "SOLVER.STEPS=[4, 2]"], ["STEPS must"]),
        (["TRAINER=nowhere:Trainer"], ["TRAINER: cannot locate 'nowhere:Trainer'"]),
        (["TRAINER=engine:HookBase"], ["TRAINER must be a class of trainers", "HookBase"]),
    ],
)
def test_wrong_settings_end_the_program_with_a_message(train_net, arguments, parts):
    with pytest.raises(SystemExit) as ended:
        train_net(*arguments)
    assert all(part in ended.value.code for part in parts), ended.value.code


@pytest.mark.slow
def test_a_missing_checkpoint_is_one_line_with_several_processes_too(train_net):
    with pytest.raises(SystemExit) as ended:
        train_net("--num-gpus", "2", "MODEL.WEIGHTS=nowhere.pth")
    (line,) = ended.value.code.splitlines()
    assert line.startswith("MissingCheckpointError: there is no checkpoint nowhere.pth (on ")


def test_weights_that_would_run_code_are_refused_in_one_line(start_tool, config, tmp_path):
    torch.save({"model": json.JSONDecoder}, tmp_path / "weights.pth")
    failed = start_tool(
        "train_net.py", "--config-file", config, "OUTPUT_DIR", tmp_path / "out",
        "MODEL.WEIGHTS", tmp_path / "weights.pth",
    )  # fmt: skip
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"CheckpointError: the checkpoint {tmp_path}/weights.pth")
    assert "json.decoder.JSONDecoder, which is no plain value" in failed.stderr
    assert "weights_only" not in failed.stderr + failed.stdout


def test_help_says_what_the_program_does(run_tool, capsys):
    with pytest.raises(SystemExit):
        run_tool("train_net.py", "--help")
    assert "Train or evaluate what a config describes." in capsys.readouterr().out


def test_the_template_may_be_read_in_part(start_tool):
    reader, writer = os.pipe()
    os.close(reader)
    done = start_tool("train_net.py", "--print-config-template", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_config_file_is_named(run_tool, tmp_path):
    with pytest.raises(SystemExit, match="no_such"):
        run_tool("train_net.py", "--config-file", tmp_path / "no_such.yaml")


def test_an_output_folder_that_cannot_be_written_to_is_named(train_net, config):
    with pytest.raises(SystemExit, match=r"OUTPUT_DIR cannot be written to .*digits.yaml/below"):
        train_net("OUTPUT_DIR", config / "below")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("MODEL.WEIGHTS=nowhere.pth", "MissingCheckpointError: there is no checkpoint nowhere.pth"),
        ("OUTPUT_DIR=/dev/null/below", "ConfigError: OUTPUT_DIR cannot be written to"),
    ],
)
def test_a_wrong_path_is_one_line_with_two_processes_too(
    start_tool, config, tmp_path, override, error
):
    done = start_tool(
        "train_net.py", "--config-file", config, "--num-gpus", 2, "OUTPUT_DIR", tmp_path / "out",
        override,
    )  # fmt: skip
    (line,) = done.stderr.splitlines()
    assert line.startswith(error)


@pytest.mark.slow
def test_two_processes_and_results_that_were_not_expected(start_tool, config, tmp_path):
    done = start_tool(
        "train_net.py", "--config-file", config, "--num-gpus", 2, "OUTPUT_DIR", tmp_path / "out",
        "TEST.EXPECTED_RESULTS", "[[classification, loss, 9, 0]]",
    )  # fmt: skip
    assert done.returncode == 1
    assert "Results are not as expected" in done.stdout
    assert results(tmp_path / "out")["digits_test"]["classification"]["loss"] < 9
    assert (tmp_path / "out" / "model_final.pth").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "override",  # is read before the run has decided whether to resume, and after
    ["TRAINER=dies:Trainer", "MODEL.META_ARCHITECTURE=dies:DigitsMLP"],
)
def test_a_restart_does_not_go_on_with_what_an_older_run_has_left(
    train_net, start_tool, config, tmp_path, monkeypatch, override
):
    train_net("SOLVER.MAX_ITER", 4)
    (tmp_path / "dies.py").write_text(
        """
import os, pathlib
from engine import DefaultTrainer as Trainer
from engine.zoo.digits import DigitsMLP

alive = pathlib.Path(__file__).with_name("alive")
if not alive.exists():
    alive.touch()
    os.kill(os.getpid(), 9)
"""
    )
    monkeypatch.chdir(tmp_path)
    done = start_tool(
        "train_net.py", "--config-file", config, "--max-restarts", 1,
        "OUTPUT_DIR", tmp_path / "out", "SOLVER.MAX_ITER", 4, override,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "was killed by SIGKILL" in done.stdout + done.stderr
    assert "Starting training from iteration 0" in done.stdout


def test_the_template_of_configs_is_printed(run_tool, capsys):
    with pytest.raises(SystemExit) as ended:
        run_tool("train_net.py", "--print-config-template")
    assert not ended.value.code
    assert "BASE_LR: 0.001" in capsys.readouterr().out
