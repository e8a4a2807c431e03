import copy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config.errors import ConfigError
from engine.config.node import CfgNode
from engine.utils.periods import Period


def make_cfg():
    cfg = CfgNode()
    cfg.NAME = "digits"
    cfg.LOG_PERIOD = Period(20)
    cfg.SOLVER = CfgNode()
    cfg.SOLVER.BASE_LR = 0.1
    cfg.SOLVER.MAX_ITER = 100
    cfg.SOLVER.STEPS = (60, 80)
    cfg.SOLVER.DECAY = None
    cfg.SOLVER.CLIP = CfgNode()
    cfg.SOLVER.CLIP.ENABLED = False
    cfg.SOLVER.OPTIMIZER = CfgNode(new_allowed=True)
    cfg.SOLVER.OPTIMIZER.NAME = "SGD"
    cfg.HOOKS = []
    return cfg


def write(path, text):
    path.write_text(text)
    return str(path)


def test_settings_are_read_as_attributes_and_items():
    cfg = make_cfg()
    assert cfg.SOLVER.BASE_LR == cfg["SOLVER"]["BASE_LR"] == 0.1
    assert "SOLVER" in cfg
    assert "ZEBRA" not in cfg
    assert cfg.get("ZEBRA", 5) == 5
    assert cfg.get("NAME", 5) == "digits"


def test_reading_a_mistyped_attribute_names_the_close_one():
    with pytest.raises(AttributeError, match=r"no config key BASE_LRR .*did you mean BASE_LR\?"):
        _ = make_cfg().SOLVER.BASE_LRR


def test_defaults_file_and_command_line_win_in_this_order(tmp_path):
    base = tmp_path / "base.yaml"
    base.write_text("SOLVER:\n  BASE_LR: 1e-3\n  MAX_ITER: 7\n  STEPS: (3, 5)\n")
    file = write(tmp_path / "a.yaml", "_BASE_: base.yaml\nSOLVER:\n  MAX_ITER: 8\n")
    cfg = make_cfg()
    cfg.merge_from_file(file)
    assert (cfg.SOLVER.BASE_LR, cfg.SOLVER.MAX_ITER, cfg.SOLVER.STEPS) == (0.001, 8, (3, 5))
    cfg.merge_from_list(["SOLVER.MAX_ITER", "9"])
    assert cfg.SOLVER.MAX_ITER == 9
    assert cfg.NAME == "digits"


def test_yaml_stays_safe_whatever_the_caller_allows(tmp_path):
    cfg = make_cfg()
    cfg.merge_from_file(write(tmp_path / "safe.yaml", "NAME: a"), allow_unsafe=True)
    assert cfg.NAME == "a"
    unsafe = write(tmp_path / "unsafe.yaml", "NAME: !!python/object/apply:os.getcwd []")
    with pytest.raises(ConfigError, match=r"unsafe\.yaml"):
        cfg.merge_from_file(unsafe, allow_unsafe=True)


def test_the_command_line_mixes_pairs_and_assignments():
    cfg = make_cfg()
    cfg.merge_from_list(["SOLVER.BASE_LR", "1", "NAME=a=b", "SOLVER.CLIP.ENABLED=true"])
    cfg.merge_from_list(["SOLVER.STEPS", "[1,2]"])
    cfg.merge_from_list(["SOLVER.MAX_ITER", 5, "LOG_PERIOD=2 epoch", "HOOKS=[{NAME: EMAHook}]"])
    assert cfg.SOLVER.BASE_LR == 1.0
    assert cfg.NAME == "a=b"
    assert cfg.SOLVER.CLIP.ENABLED is True
    assert cfg.SOLVER.STEPS == (1, 2)
    assert cfg.SOLVER.MAX_ITER == 5
    assert cfg.LOG_PERIOD == "2 epoch"
    assert cfg.HOOKS == [{"NAME": "EMAHook"}]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["SOLVER.MAX_ITER", "SOLVER.DECAY"]), st.integers())))
def test_of_several_overrides_of_a_key_the_last_one_counts(overrides):
    cfg = make_cfg()
    cfg.merge_from_list([f"{key}={value}" for key, value in overrides])
    last = dict(overrides)
    assert last.get("SOLVER.MAX_ITER", 100) == cfg.SOLVER.MAX_ITER
    assert last.get("SOLVER.DECAY") == cfg.SOLVER.DECAY


def test_an_override_without_value_is_refused():
    with pytest.raises(ConfigError, match=r"NAME has no value; write NAME VALUE or NAME=VALUE"):
        make_cfg().merge_from_list(["SOLVER.MAX_ITER", "5", "NAME"])
    with pytest.raises(ConfigError, match="expected a KEY, got 5"):
        make_cfg().merge_from_list([5, "NAME"])


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("SOLVER.CLIP.ENABLE", "SOLVER.CLIP.ENABLED"),
        ("SOLVER.BASE_LRR", "SOLVER.BASE_LR"),
        ("BASE_LR", "SOLVER.BASE_LR"),
        ("SLOVER.BASE_LR", "SOLVER.BASE_LR"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(key, hint):
    with pytest.raises(ConfigError) as error:
        make_cfg().merge_from_list([f"{key}=1"])
    assert str(error.value).startswith(f"command line: unknown key {key}\n  did you mean {hint}?")


def test_an_unknown_key_names_the_file_it_stands_in(tmp_path):
    write(tmp_path / "base.yaml", "SOLVER:\n  CLIP:\n    ENABLE: true\n")
    file = write(tmp_path / "a.yaml", "_BASE_: base.yaml\n")
    with pytest.raises(ConfigError, match=r"base.yaml: unknown key SOLVER.CLIP.ENABLE\n"):
        make_cfg().merge_from_file(file)


def test_a_wrong_type_names_file_key_value_and_what_was_expected(tmp_path):
    file = write(tmp_path / "a.yaml", "SOLVER:\n  MAX_ITER: many\n")
    with pytest.raises(ConfigError) as error:
        make_cfg().merge_from_file(file)
    assert str(error.value) == (
        f"{file}: SOLVER.MAX_ITER is 'many' (str); expected a whole number, such as 100"
    )


def test_types_are_those_of_the_defaults_not_of_what_came_between():
    cfg = make_cfg()
    cfg.merge_from_list(["SOLVER.MAX_ITER=None", "SOLVER.DECAY=5"])
    cfg.merge_from_list(["SOLVER.DECAY=cosine"])
    assert cfg.SOLVER.DECAY == "cosine"
    with pytest.raises(ConfigError, match="expected a whole number"):
        cfg.merge_from_list(["SOLVER.MAX_ITER=many"])


def test_a_section_and_a_value_cannot_stand_for_each_other():
    with pytest.raises(
        ConfigError, match=r"SOLVER is a section, got 5; set its keys, such as SOLVER.BASE_LR"
    ):
        make_cfg().merge_from_list(["SOLVER=5"])
    with pytest.raises(ConfigError, match=r"NAME is \{'A': 1\} .*expected text"):
        make_cfg().merge_from_list(["NAME.A=1"])


def test_a_section_with_all_its_lines_commented_out_changes_nothing(tmp_path):
    cfg = make_cfg()
    cfg.merge_from_file(write(tmp_path / "a.yaml", "SOLVER:\n#  MAX_ITER: 5\n"))
    assert cfg == make_cfg()


def test_a_free_form_section_takes_any_keys_and_checks_those_it_knows():
    cfg = make_cfg()
    cfg.merge_from_other_cfg({"SOLVER": {"OPTIMIZER": {"betas": [0.9, 0.95], "more": {"a": 1}}}})
    cfg.merge_from_list(["SOLVER.OPTIMIZER.eps=1e-8", "SOLVER.OPTIMIZER.more.b", "2"])
    assert cfg.SOLVER.OPTIMIZER.betas == [0.9, 0.95]
    assert cfg.SOLVER.OPTIMIZER.eps == 1e-8
    assert cfg.SOLVER.OPTIMIZER.more == {"a": 1, "b": 2}
    with pytest.raises(ConfigError, match=r"SOLVER.OPTIMIZER.NAME is \[1\]"):
        cfg.merge_from_other_cfg({"SOLVER": {"OPTIMIZER": {"NAME": [1]}}})


def test_what_is_merged_is_a_copy():
    hooks = [{"NAME": "EMAHook"}]
    cfg = make_cfg()
    cfg.merge_from_other_cfg({"HOOKS": hooks})
    hooks[0]["NAME"] = "changed"
    assert cfg.HOOKS == [{"NAME": "EMAHook"}]


def test_a_frozen_config_says_how_to_change_it():
    cfg = make_cfg()
    cfg.freeze()
    assert cfg.is_frozen()
    with pytest.raises(AttributeError, match=r"cannot set MAX_ITER to 5: .*cfg.defrost\(\)"):
        cfg.SOLVER.MAX_ITER = 5
    with pytest.raises(AttributeError, match="frozen"):
        cfg.merge_from_list(["SOLVER.MAX_ITER=5"])
    with pytest.raises(AttributeError, match="frozen"):
        cfg.merge_from_other_cfg({"SOLVER": {"MAX_ITER": 5}})
    assert cfg == make_cfg()
    cfg.defrost()
    cfg.SOLVER.MAX_ITER = 5
    assert cfg.SOLVER.MAX_ITER == 5


@pytest.mark.parametrize(
    "duplicate", [CfgNode.clone, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))]
)
def test_a_copy_is_independent_and_as_strict(duplicate):
    cfg = make_cfg()
    cfg.freeze()
    other = duplicate(cfg)
    assert other == cfg
    assert other.is_frozen()
    other.defrost()
    other.merge_from_list(["LOG_PERIOD=2 epoch", "SOLVER.OPTIMIZER.betas=[0.9]"])
    with pytest.raises(ConfigError):
        other.merge_from_list(["SOLVER.MAX_ITR=5"])
    assert cfg == make_cfg()


def test_keys_can_be_added_in_code_for_a_project_of_ones_own():
    cfg = make_cfg()
    cfg.MY_PROJECT = CfgNode({"WIDTH": 4})
    cfg.merge_from_list(["MY_PROJECT.WIDTH=8"])
    assert cfg.MY_PROJECT.WIDTH == 8


def test_only_plain_values_can_be_set():
    with pytest.raises(TypeError, match="NAME: a config holds numbers, text, lists and None"):
        make_cfg().NAME = object()


def test_renamed_and_deprecated_keys_are_told_apart_from_typos():
    cfg = make_cfg()
    cfg.register_renamed_key("SOLVER.LR", "SOLVER.BASE_LR", "the meaning is the same")
    cfg.register_deprecated_key("SOLVER.OLD")
    cfg.merge_from_list(["SOLVER.OLD=5"])
    with pytest.raises(ConfigError, match=r"now called SOLVER.BASE_LR - the meaning is the same"):
        cfg.merge_from_list(["SOLVER.LR=5"])


def test_keys_of_a_section_that_is_gone_may_be_deprecated_or_renamed(tmp_path, caplog):
    cfg = make_cfg()
    cfg.register_deprecated_key("OLD.KEY")
    cfg.register_renamed_key("OLD.LR", "SOLVER.BASE_LR")
    cfg.merge_from_list(["OLD.KEY", "1"])
    assert "Deprecated config key (ignoring): OLD.KEY" in caplog.text
    assert cfg == make_cfg()
    file = tmp_path / "a.yaml"
    file.write_text("OLD: {KEY: 1, LR: 0.1}\n")
    with pytest.raises(ConfigError, match=r"unknown key OLD.LR\n  it is now called SOLVER.BASE_LR"):
        cfg.merge_from_file(file)
    with pytest.raises(ConfigError, match=r"unknown key OLD.KEYS"):
        cfg.merge_from_list(["OLD.KEYS", "1"])


def test_base_works_in_files_only():
    with pytest.raises(ConfigError, match="_BASE_ works in files only"):
        make_cfg().merge_from_list(["_BASE_=a.yaml"])


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@settings(deadline=None, max_examples=50)
@given(
    name=st.text(),
    lr=st.floats(allow_nan=False),
    steps=st.lists(st.integers()).map(tuple),
    period=st.integers(0, 10**9) | st.just("2 epoch"),
    decay=plain,
    options=st.dictionaries(st.text("abc_", min_size=1), plain | st.lists(plain)),
    hooks=st.lists(st.dictionaries(st.text(), plain)),
)
def test_what_is_dumped_merges_back_to_the_same(tmp_path_factory, **values):
    cfg = make_cfg()
    cfg.NAME, cfg.LOG_PERIOD, cfg.HOOKS = values["name"], values["period"], values["hooks"]
    cfg.SOLVER.BASE_LR, cfg.SOLVER.STEPS = values["lr"], values["steps"]
    cfg.SOLVER.DECAY = values["decay"]
    cfg.SOLVER.OPTIMIZER.update(values["options"])
    file = tmp_path_factory.mktemp("dump") / "config.yaml"
    file.write_text(cfg.dump(), encoding="utf-8")
    merged = make_cfg()
    merged.merge_from_file(str(file))
    assert merged == cfg
    assert CfgNode.load_cfg(cfg.dump()).NAME == cfg.NAME


def test_a_file_is_read_with_its_bases_into_one_dict(tmp_path):
    write(tmp_path / "base.yaml", "A: {X: 1, Y: 2}")
    file = write(tmp_path / "a.yaml", "_BASE_: base.yaml\nA: {Y: 3}")
    assert CfgNode.load_yaml_with_base(file) == {"A": {"X": 1, "Y": 3}}
