import pytest

from engine.config import ConfigError, get_cfg


def test_every_call_gives_a_copy_of_its_own():
    cfg = get_cfg()
    cfg.SOLVER.MAX_ITER = 5
    assert get_cfg().SOLVER.MAX_ITER == 40000


def test_detectron2s_values_are_kept():
    cfg = get_cfg()
    assert cfg.SOLVER.IMS_PER_BATCH == 16
    assert cfg.SOLVER.CHECKPOINT_PERIOD == 5000
    assert cfg.SOLVER.STEPS == (30000,)
    assert cfg.OUTPUT_DIR == "./output"
    assert cfg.TEST.PRECISE_BN.NUM_ITER == 200
    assert cfg.SEED == -1


def test_every_period_accepts_iterations_epochs_and_minutes():
    cfg = get_cfg()
    keys = [key for key in cfg.keys_of_tree() if key.endswith("PERIOD")]
    keys.remove("VIS_PERIOD")  # models of users read it, and divide by it
    assert {"LOG_PERIOD", "TEST.EVAL_PERIOD", "SOLVER.CHECKPOINT_PERIOD"} <= set(keys)
    for value in ("500", "2 epoch", "10 min"):
        cfg.merge_from_list([item for key in keys for item in (key, value)])
    assert cfg.SOLVER.CHECKPOINT_PERIOD == "10 min"


def test_no_setting_of_parallel_may_be_left_empty():
    sections = {"PARALLEL", "PARALLEL.DDP", "PARALLEL.FSDP"}
    keys = {key for key in get_cfg().keys_of_tree() if key.startswith("PARALLEL")} - sections
    assert len(keys) > 10
    for key in keys:
        with pytest.raises(ConfigError, match=f"{key} is None .*; expected"):
            get_cfg().merge_from_list([key, None])


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("SEED", "99999999999999999999", "at most 9223372036854775807"),
        ("SEED", str(2**64 - 1), "at most"),  # torch takes it, but not with a rank added
        ("TEST.SEED", str(2**64 - 1), "at most"),
        ("SOLVER.MOMENTUM", "-1", "0 or more"),
        ("SOLVER.WARMUP_FACTOR", "-1", "0 or more"),
        ("SOLVER.MOMENTUM_SCHEDULE.WARMUP_FACTOR", "-1", "0 or more"),
        ("SOLVER.BASE_LR", "-1", "0 or more"),
        ("SOLVER.BASE_LR", ".inf", "finite"),
        ("SOLVER.BASE_LR", ".nan", "0 or more"),
        ("DATALOADER.RANDOM_SUBSET_RATIO", "0", "a number above 0, at most 1"),
    ],
)
def test_numbers_that_no_run_can_use_are_refused(key, value, expected):
    with pytest.raises(ConfigError, match=f"command line: {key} is .*; expected .*{expected}"):
        get_cfg().merge_from_list([key, value])


def test_hooks_and_optimizer_arguments_come_as_they_are(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(
        "HOOKS: [{NAME: EMAHook, START: 500, PRIORITY: NORMAL}]\n"
        "SOLVER:\n"
        "  OPTIMIZER: {NAME: AdamW, betas: [0.9, 0.95], eps: 1e-6}\n"
        "  PARAM_RULES: [{MATCH: ^backbone, LR_MULT: 0.1}]\n"
        "DEFAULT_HOOKS: {EvalHook: {ENABLED: false}}\n"
        "MODEL: {ARGS: {width: 64}}\n"
    )
    cfg = get_cfg()
    cfg.merge_from_file(str(file))
    assert cfg.HOOKS == [{"NAME": "EMAHook", "START": 500, "PRIORITY": "NORMAL"}]
    assert cfg.SOLVER.OPTIMIZER == {"NAME": "AdamW", "betas": [0.9, 0.95], "eps": 1e-6}
    assert cfg.MODEL.ARGS.width == 64
    assert not cfg.DEFAULT_HOOKS.EvalHook.ENABLED
