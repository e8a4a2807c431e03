import pytest
import torch

from engine import hooks
from engine.checkpoint import Checkpointer
from engine.config import ConfigError, get_cfg
from engine.hooks.from_config import (
    build_early_stopping,
    build_ema,
    build_hook,
    build_time_limit,
    build_watchdog,
)


def test_an_entry_of_hooks_gives_name_arguments_and_priority():
    for key in ("PRIORITY", "priority"):
        hook = build_hook({"NAME": "EMAHook", "DECAY": 0.5, key: "LOW"})
        assert isinstance(hook, hooks.EMAHook)
        assert hook.priority == hooks.Priority.LOW


def test_a_function_is_named_by_its_path():
    hook = build_hook({"NAME": "VisualizationHook", "DRAW": "torch:zeros_like", "PERIOD": 2})
    assert hook._draw is torch.zeros_like
    with pytest.raises(KeyError, match="torch:zeroslike"):
        build_hook({"NAME": "VisualizationHook", "DRAW": "torch:zeroslike"})


def test_profiled_steps_are_chosen_by_a_pair(tmp_path):
    entry = {"NAME": "TorchProfiler", "ENABLE_PREDICATE": [1, 3], "OUTPUT_DIR": str(tmp_path)}
    assert isinstance(build_hook(entry), hooks.TorchProfiler)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"NAME": "ProbeHook"}, "HOOKS: ProbeHook: missing a required argument: 'output_dir'"),
        (
            {"NAME": "EMAHook", "DECAI": 1},
            "HOOKS: EMAHook has no argument 'decai'; did you mean decay",
        ),
        (
            {"NAME": "EMAHook", "DECAY": "high"},
            "HOOKS: EMAHook: DECAY: expected a number, got",
        ),
        (
            {"NAME": "EMAHook", "BUFFERS": "no"},
            "BUFFERS: expected true or false, got 'no'",
        ),
        ({"NAME": "Watchdog", "FACTOR": [2]}, "HOOKS: Watchdog: FACTOR: expected a number, got"),
        ({"NAME": "TimeLimit", "LIMIT": 3}, "HOOKS: TimeLimit: a length of time .* got 3"),
        ({"NAME": "CallbackHook", "AFTER_STEPP": None}, "HOOKS: CallbackHook: .* no point"),
        ({"NAME": "torch.nn:ReLU"}, "HOOKS: torch.nn:ReLU is no HookBase, but ReLU"),
        ({"DECAY": 1}, "an entry of HOOKS is {NAME: …, and arguments}"),
        ("EMAHook", "an entry of HOOKS is {NAME: …, and arguments}"),
    ],
)
def test_a_wrong_entry_is_refused_with_what_is_wrong(entry, message):
    with pytest.raises(ConfigError, match=message.replace("{", r"\{")):
        build_hook(entry)


def test_hooks_are_left_out_where_the_config_switches_them_off():
    cfg = get_cfg()
    cfg.DEFAULT_HOOKS.Watchdog.ENABLED = False
    builders = (build_ema, build_early_stopping, build_time_limit, build_watchdog)
    assert [build(cfg) for build in builders] == [None] * 4


def test_hooks_are_built_where_the_config_switches_them_on():
    cfg = get_cfg()
    cfg.merge_from_list(["EMA.ENABLED", True, "EARLY_STOPPING.METRIC", "+a", "TIME_LIMIT", "1h"])
    builders = (build_ema, build_early_stopping, build_time_limit, build_watchdog)
    expected = [hooks.EMAHook, hooks.EarlyStopping, hooks.TimeLimit, hooks.Watchdog]
    assert [type(build(cfg)) for build in builders] == expected


@pytest.mark.parametrize("key", ["TIME_LIMIT", "WATCHDOG.TIMEOUT"])
def test_a_wrong_duration_names_its_key(key):
    cfg = get_cfg()
    cfg.merge_from_list([key, "soon"])
    with pytest.raises(ConfigError, match=f"{key}: .*soon"):
        (build_time_limit if key == "TIME_LIMIT" else build_watchdog)(cfg)


def test_what_a_hook_needs_and_is_not_given_is_filled_in(tmp_path):
    checkpointer = Checkpointer(torch.nn.Linear(1, 1), tmp_path)
    offered = {"checkpointer": checkpointer, "eval_period": 7, "output_dir": str(tmp_path)}
    entry = {"NAME": "BestCheckpointer", "VAL_METRIC": "-loss", "FILE_PREFIX": "lowest"}
    hook = build_hook(entry, **offered)
    assert (hook._checkpointer, hook._period) == (checkpointer, 7)
    assert build_hook({**entry, "EVAL_PERIOD": 3}, **offered)._period == 3
    assert build_hook({"NAME": "EMAHook"}, **offered).average == {}
