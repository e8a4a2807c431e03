import json
import logging
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from engine import DefaultTrainer
from engine.config import ConfigError, LazyConfig, get_cfg
from engine.events import CommonMetricPrinter, JSONWriter, TensorboardXWriter
from engine.startup import (
    check_space_for_checkpoints,
    default_argument_parser,
    default_setup,
    default_writers,
)

pytestmark = pytest.mark.usefixtures("own_loggers")


@pytest.fixture
def log_text(tmp_path):
    return lambda: (tmp_path / "run" / "log.txt").read_text()


# --- the command line ---------------------------------------------------------------------------


def test_the_flags_have_detectron2s_names_and_defaults():
    args = default_argument_parser().parse_args([])
    assert vars(args) == {
        "config_file": "",
        "resume": False,
        "eval_only": False,
        "num_gpus": 1,
        "num_machines": 1,
        "machine_rank": 0,
        "dist_url": "auto",
        "max_restarts": 0,
        "opts": [],
    }


@pytest.mark.parametrize(
    "line",
    [
        "--resume --config-file c.yaml OUTPUT_DIR x SOLVER.BASE_LR=0.1",
        "OUTPUT_DIR x SOLVER.BASE_LR=0.1 --config-file c.yaml --resume",
        "OUTPUT_DIR x --resume SOLVER.BASE_LR=0.1 --config-file c.yaml",
        "--config-file c.yaml OUTPUT_DIR --resume x SOLVER.BASE_LR=0.1",
    ],
)
def test_flags_work_before_between_and_after_overrides(line):
    args = default_argument_parser().parse_args(line.split())
    assert (args.resume, args.config_file) == (True, "c.yaml")
    assert args.opts == ["OUTPUT_DIR", "x", "SOLVER.BASE_LR=0.1"]


def test_values_may_be_negative_numbers_or_empty():
    opts = ["SEED", "-1", "MODEL.WEIGHTS", "", "SOLVER.BASE_LR=-.5"]
    assert default_argument_parser().parse_args(opts).opts == opts


@pytest.mark.parametrize("number", ["-1e-3", "-1.5E+4", "-.5e1", "-2.", "-0.001"])
def test_negative_numbers_may_have_an_exponent(number):
    opts = ["SOLVER.BASE_LR_END", number]
    assert default_argument_parser().parse_args(opts).opts == opts


def test_an_unknown_flag_is_refused(capsys):
    with pytest.raises(SystemExit) as exit_info:
        default_argument_parser().parse_args(["--rezume", "OUTPUT_DIR", "x"])
    assert exit_info.value.code == 2
    assert "--rezume" in capsys.readouterr().err


def test_scripts_add_flags_and_examples_of_their_own(capsys):
    parser = default_argument_parser(epilog="my example")
    parser.add_argument("--fast", action="store_true")
    assert parser.parse_args(["A", "1", "--fast"]).fast
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    assert "my example" in capsys.readouterr().out


# --- default_setup ------------------------------------------------------------------------------


def test_what_is_run_is_written_down(digits_cfg, tmp_path, log_text):
    cfg = digits_cfg("SOLVER.MAX_ITER", "2 epoch", "HOOKS", "[{NAME: EMAHook}]")
    default_setup(cfg, {})
    folder = tmp_path / "run"
    again = get_cfg()
    again.merge_from_file(folder / "config.yaml")
    assert again == cfg
    assert "torch" in (folder / "environment.txt").read_text()
    assert len((folder / "command.txt").read_text().splitlines()) == 1
    (code,) = folder.glob("code_*")
    state = json.loads((code / "git.json").read_text())
    assert "commit" in state or "error" in state
    assert (code / "changes.diff").exists()
    assert "Using seed 0" in log_text()


def test_all_code_is_kept_on_request(digits_cfg, tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "model.py").write_text("depth = 1")
    monkeypatch.chdir(tmp_path / "project")
    default_setup(digits_cfg("COPY_CODE", "all"), {})
    (copy,) = (tmp_path / "run").glob("code_*/all/model.py")
    assert copy.read_text() == "depth = 1"


def test_each_start_adds_a_line_to_the_commands(digits_cfg, tmp_path):
    for _ in range(2):
        default_setup(digits_cfg(), {})
    assert len((tmp_path / "run" / "command.txt").read_text().splitlines()) == 2


def test_a_command_line_may_hold_file_names_that_are_no_utf_8(digits_cfg, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train_net.py", os.fsdecode(b"caf\xe9.yaml")])
    default_setup(digits_cfg(), {})
    assert "caf\\udce9.yaml" in (tmp_path / "run" / "command.txt").read_text()


def test_the_config_file_is_logged_as_it_is(digits_cfg, tmp_path, log_text):
    (tmp_path / "c.yaml").write_text("SEED: 0  # a comment\n")
    args = default_argument_parser().parse_args(["--config-file", str(tmp_path / "c.yaml")])
    default_setup(digits_cfg(), args)
    assert "SEED: 0  # a comment" in log_text()


def test_crashes_and_stacks_that_are_asked_for_go_to_a_file(digits_cfg, tmp_path, log_text):
    default_setup(digits_cfg(), {})
    faults = tmp_path / "run" / "faults.txt"
    assert f"`kill -USR2 {os.getpid()}` asks for, go to {faults}" in log_text()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert "test_crashes_and_stacks" in faults.read_text()


def test_everything_random_is_seeded(digits_cfg):
    def draw(seed):
        default_setup(digits_cfg("SEED", seed), {})
        return torch.rand(()).item(), np.random.rand(), random.random()

    assert draw(3) == draw(3) != draw(4)
    assert draw(-1) != draw(-1)


def test_a_lazy_config_is_taken_too(tmp_path):
    path = tmp_path / "lazy.py"
    path.write_text(f"train = dict(output_dir={str(tmp_path / 'run')!r}, seed=7, threads=1)\n")
    default_setup(LazyConfig.load(str(path)), {})
    first = torch.rand(())
    torch.manual_seed(7)
    assert torch.rand(()) == first
    assert LazyConfig.load(str(tmp_path / "run" / "config.yaml")).train.seed == 7


def test_a_lazy_config_that_yaml_cannot_hold_does_not_stop_the_run(tmp_path):
    path = tmp_path / "lazy.py"
    path.write_text(
        f"train = dict(output_dir={str(tmp_path / 'run')!r}, seed=7)\n"
        "optimizer = dict(factor=lambda step: 1)\n"
    )
    default_setup(LazyConfig.load(str(path)), {})
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("config.yaml is not written: YAML cannot hold\n  optimizer.factor") == 1
    assert (tmp_path / "run" / "environment.txt").exists()


def test_an_output_folder_that_cannot_be_written_to_is_an_error_at_once(digits_cfg, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigError, match=r"OUTPUT_DIR cannot be written to .*name another.*file/below"
    ):
        default_setup(digits_cfg("OUTPUT_DIR", str(tmp_path / "file" / "below")), {})


def test_without_an_output_folder_nothing_is_written(digits_cfg, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    default_setup(digits_cfg("OUTPUT_DIR", ""), {})
    assert [type(writer) for writer in default_writers("")] == [CommonMetricPrinter]
    assert list(tmp_path.iterdir()) == []


def test_settings_of_torch_are_applied(digits_cfg):
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        default_setup(digits_cfg("THREADS", 2, "FLOAT32_PRECISION", "high"), {})
        assert torch.get_num_threads() == 2
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def test_lines_of_the_engine_reach_the_log_file_once(digits_cfg, log_text):
    for _ in range(2):
        default_setup(digits_cfg(), {})
    logging.getLogger("engine.anything").info("a unique line")
    assert log_text().count("a unique line") == 1


def test_the_default_writers_are_the_console_json_and_tensorboard(tmp_path):
    writers = default_writers(str(tmp_path / "new"), 10)
    assert [type(w) for w in writers] == [CommonMetricPrinter, JSONWriter, TensorboardXWriter]
    for writer in writers:
        writer.close()


# --- free space ---------------------------------------------------------------------------------


@pytest.fixture
def a_run():
    """The config of a run with a state of 80 kB: a weight of 40 kB and its momentum."""
    model = torch.nn.Linear(100, 100, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def check(folder, *overrides, **options):
        cfg = get_cfg()
        cfg.merge_from_list(["OUTPUT_DIR", str(folder), "SOLVER.MAX_ITER", 100, *overrides])
        check_space_for_checkpoints(cfg, model, optimizer, **options)

    return check


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        (["SOLVER.CHECKPOINT_PERIOD", 10], 12),
        (["SOLVER.CHECKPOINT_PERIOD", "2 epoch"], 7),
        (["SOLVER.CHECKPOINT_PERIOD", 10, "CHECKPOINT.KEEP_LAST", 2], 4),
        (["SOLVER.CHECKPOINT_PERIOD", "10 min", "CHECKPOINT.KEEP_LAST", 3], 5),
        (["SOLVER.CHECKPOINT_PERIOD", 50, "CHECKPOINT.BEST_METRIC", "+accuracy"], 5),
    ],
)
def test_too_little_space_for_all_checkpoints_is_told_at_the_start(
    small_disk, log, a_run, overrides, count
):
    a_run(small_disk, *overrides, epoch_length=10.0)
    assert f"the {count} checkpoints to come will take about {count * 80} kB" in log.text


@pytest.mark.parametrize(
    "overrides",
    [
        ["SOLVER.CHECKPOINT_PERIOD", 0],
        ["SOLVER.CHECKPOINT_PERIOD", 10, "CHECKPOINT.KEEP_LAST", 1],
        ["SOLVER.CHECKPOINT_PERIOD", "10 min"],
    ],
)
def test_enough_space_is_not_worth_a_word(small_disk, log, a_run, overrides):
    a_run(small_disk, *overrides)
    assert log.records == []


def test_checkpoints_that_are_there_already_need_no_space_in_a_resumed_run(small_disk, log, a_run):
    for number in (9, 19, 29):
        (small_disk / f"model_{number:07d}.pth").write_bytes(bytes(80_000))
    keep_2 = ["SOLVER.CHECKPOINT_PERIOD", 10, "CHECKPOINT.KEEP_LAST", 2]
    with pytest.raises(OSError, match="too little space for checkpoints: 1 of about 80 kB"):
        a_run(small_disk, *keep_2, start_iter=30)
    (small_disk / "model_0000009.pth").unlink()
    a_run(small_disk, *keep_2, start_iter=30)
    assert "the 2 checkpoints to come" in log.text


def test_a_run_that_cannot_save_does_not_start(small_disk, a_run):
    (small_disk / "others").write_bytes(bytes(200_000))
    with pytest.raises(OSError, match="too little space for checkpoints: 2 of about 80 kB"):
        a_run(small_disk)


def test_the_default_trainer_looks_at_the_space_before_it_trains(small_disk, digits_cfg):
    (small_disk / "others").write_bytes(bytes(290_000))
    trainer = DefaultTrainer(digits_cfg("OUTPUT_DIR", str(small_disk), "MODEL.ARGS.hidden", 200))
    with pytest.raises(OSError, match="too little space for checkpoints"):
        trainer.train()


def test_a_run_without_a_folder_saves_nothing_and_needs_no_space(a_run, log):
    a_run("")
    assert log.records == []


def test_a_start_that_does_not_train_leaves_the_config_of_weights_that_are_there(digits_cfg):
    folder = Path(digits_cfg().OUTPUT_DIR)
    DefaultTrainer(set_up(digits_cfg("SOLVER.MAX_ITER", 4))).train()
    before = (folder / "config.yaml").read_text()
    set_up(digits_cfg("SOLVER.MAX_ITER", 5))
    assert (folder / "config.yaml").read_text() == before
    texts = [path.read_text() for path in folder.glob("code_*/config.yaml")]
    DefaultTrainer(digits_cfg("SOLVER.MAX_ITER", 5)).train()
    assert (folder / "config.yaml").read_text() in texts
    assert "MAX_ITER: 5" in (folder / "config.yaml").read_text()


def set_up(cfg):
    default_setup(cfg, None)
    return cfg


def test_a_remote_folder_is_refused_before_anything_is_made(digits_cfg, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="OUTPUT_DIR must be a local folder, got 's3://b/out'"):
        default_setup(digits_cfg("OUTPUT_DIR", "s3://b/out"), None)
    assert list(tmp_path.iterdir()) == []


def test_a_value_with_a_dash_is_told_how_to_be_given(capsys):
    with pytest.raises(SystemExit):
        default_argument_parser().parse_args(["EARLY_STOPPING.METRIC", "-total_loss"])
    assert "a value that begins with a dash is given as KEY=VALUE" in capsys.readouterr().err
