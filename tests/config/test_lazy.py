import builtins

import pytest
import torch
from omegaconf import OmegaConf

from engine.config import ConfigError, LazyCall, LazyConfig, instantiate

COMMON = """
train = dict(max_iter=100, amp=dict(enabled=False))
lr = 0.1
"""
MAIN = """
from torch import nn
from engine.config import LazyCall as L
from .common import train, lr
from ..shared.optim import optimizer
from . import common

train.max_iter = 200
model = L(nn.Linear)(in_features=4, out_features=2, bias=train.amp.enabled)
optimizer.lr = lr * 2
hooks = [dict(name="a")]
untouched = common.train
_private = dict(a=1)

def later():
    from .common import lr
    return lr
"""


@pytest.fixture
def main(tmp_path):
    (tmp_path / "task").mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "task" / "common.py").write_text(COMMON)
    (tmp_path / "shared" / "optim.py").write_text("optimizer = dict(lr=1.0)")
    (tmp_path / "task" / "main.py").write_text(MAIN)
    return tmp_path / "task" / "main.py"


def test_a_python_file_with_relative_imports_is_one_config(main):
    cfg = LazyConfig.load(main)
    assert set(cfg) == {"train", "optimizer", "model", "hooks", "untouched"}
    assert cfg.train.max_iter == 200
    assert cfg.untouched.max_iter == 100
    assert cfg.optimizer.lr == 0.2
    assert cfg.hooks[0].name == "a"
    assert instantiate(cfg.model).out_features == 2


def test_chosen_keys_come_as_they_are(main):
    assert LazyConfig.load(main, "train").max_iter == 200
    lr, later = LazyConfig.load(main, ["lr", "later"])
    assert lr == later() == 0.1
    with pytest.raises(ConfigError, match=r"main.py: defines no trian; did you mean train\?"):
        LazyConfig.load(main, "trian")


def test_every_load_runs_the_files_anew(main):
    assert LazyConfig.load(main).optimizer.lr == 0.2
    (main.parent / "common.py").write_text(COMMON.replace("0.1", "0.5"))
    assert LazyConfig.load(main).optimizer.lr == 1.0
    assert not list(main.parent.glob("__pycache__"))


def test_pythons_own_import_is_never_touched(main):
    before = builtins.__import__
    LazyConfig.load(main)
    main.write_text("raise RuntimeError('half way')")
    with pytest.raises(RuntimeError, match="half way"):
        LazyConfig.load(main)
    assert builtins.__import__ is before


def test_configs_that_import_each_other_in_a_circle_are_refused(main):
    (main.parent / "common.py").write_text("from .main import model")
    with pytest.raises(ImportError, match=r"circle: .*main.py -> .*common.py -> .*main.py"):
        LazyConfig.load(main)


def test_a_missing_import_names_the_file_and_the_close_one(main):
    main.write_text("from .comon import train")
    with pytest.raises(
        ImportError, match=r"comon.py does not exist; named by .*main.py.*common.py"
    ):
        LazyConfig.load(main)


def test_a_slip_in_python_is_named_with_its_file_line_and_text(main):
    (main.parent / "common.py").write_text("train = {}\nlr = = 0.1\n")
    with pytest.raises(ConfigError, match=r"common.py, line 2: invalid syntax: lr = = 0.1$"):
        LazyConfig.load(main)


def test_a_folder_is_named_with_the_configs_in_it(main):
    with pytest.raises(FileNotFoundError, match=r"is a folder; name a file in it: common.py, main"):
        LazyConfig.load(main.parent)


def test_a_missing_config_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing.py does not exist"):
        LazyConfig.load(tmp_path / "nothing.py")
    with pytest.raises(ConfigError, match=r"expected a .py, .yaml or .yml file"):
        LazyConfig.load(tmp_path / "config.json")


def test_a_file_beside_the_caller_is_loaded(main):
    script = main.parent / "script.py"
    script.write_text(
        "from engine.config import LazyConfig\nvalue = LazyConfig.load_rel('common.py', 'lr')\n"
    )
    names = {}
    exec(compile(script.read_text(), str(script), "exec"), names)
    assert names["value"] == 0.1


def test_a_config_is_saved_as_yaml_and_loads_as_the_same(main, tmp_path):
    cfg = LazyConfig.load(main)
    LazyConfig.save(cfg, tmp_path / "saved.yaml")
    assert "_target_: torch.nn.Linear\n" in (tmp_path / "saved.yaml").read_text()
    loaded = LazyConfig.load(tmp_path / "saved.yaml")
    assert loaded.train == cfg.train
    assert instantiate(loaded.model).in_features == 4


def test_what_yaml_cannot_hold_is_named_and_no_file_is_left(tmp_path):
    cfg = OmegaConf.create(flags={"allow_objects": True})
    cfg.train = {"dtype": torch.float16, "max_iter": 5}
    cfg.model = LazyCall(lambda: 5)()
    with pytest.raises(ValueError, match=r"(?s)train.dtype: torch.float16.*model._target_: <func"):
        LazyConfig.save(cfg, tmp_path / "saved.yaml")
    assert list(tmp_path.iterdir()) == []


def test_a_saved_config_runs_no_code(tmp_path):
    (tmp_path / "bad.yaml").write_text("a: !!python/object/apply:os.getcwd []")
    with pytest.raises(ConfigError, match="plain values only"):
        LazyConfig.load(tmp_path / "bad.yaml")


def make_cfg():
    model = LazyCall(torch.nn.Linear)(in_features=4, out_features=2)
    return OmegaConf.create({"train": {"max_iter": 5, "steps": [1, 2]}, "model": model})


def test_overrides_change_values_in_order():
    cfg = make_cfg()
    LazyConfig.apply_overrides(cfg, ["train.max_iter=6", "train.max_iter=7", "train.steps.0=9"])
    LazyConfig.apply_overrides(cfg, ["train.steps[1]=1e-3", "+new.section.name=a=b"])
    LazyConfig.apply_overrides(cfg, ["+model.bias=false"])
    assert cfg.train == {"max_iter": 7, "steps": [9, 0.001]}
    LazyConfig.apply_overrides(cfg, ["train.max_iter=2 epoch"])
    assert cfg.train.max_iter == "2 epoch"
    LazyConfig.apply_overrides(cfg, ["+train.max_iter=endless"])
    assert cfg.train.max_iter == "endless"
    assert cfg.new.section.name == "a=b"
    assert instantiate(cfg.model).bias is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "train.max_itr=5",
            r"cannot set train.max_itr: there is no such key; did you mean train.max_iter\?$",
        ),
        ("max_iter=5", r"did you mean train.max_iter\?"),
        ("train.zebra=5", r"\+train.zebra=5 adds a new key"),
        ("train.max_iter.deeper=5", r"cannot set train.max_iter.deeper"),
        ("+train.max_iter.deeper=5", r"cannot set train.max_iter.deeper"),
        ("train.steps.9=5", r"cannot set train.steps.9"),
        ("train.steps.first.x=5", r"cannot set train.steps.first.x"),
        ("train.max_iter=${", r"cannot set train.max_iter"),
        ("train.max_iter=many", "set train.max_iter: it is 5, not a word like 'many'"),
        ("model=resnet", "it is a section with _target_, in_features, out_features, and 'resnet'"),
        ("train.max_iter", "expected key=value, got 'train.max_iter'"),
    ],
)
def test_an_override_of_what_is_not_there_is_refused(override, message):
    cfg = make_cfg()
    with pytest.raises(ConfigError, match=message):
        LazyConfig.apply_overrides(cfg, [override])
    assert cfg == make_cfg()


def test_a_config_prints_as_python():
    text = LazyConfig.to_py(make_cfg())
    assert text == (
        "cfg.train.max_iter = 5\n"
        "cfg.train.steps = [1, 2]\n"
        "cfg.model = torch.nn.Linear(in_features=4, out_features=2)\n"
    )
    assert LazyConfig.to_py(make_cfg().model, "it.") == (
        "it = torch.nn.Linear(in_features=4, out_features=2)\n"
    )


def test_only_what_can_be_called_later_is_a_lazy_call():
    with pytest.raises(TypeError, match="LazyCall takes a class, a function or the dotted name"):
        LazyCall(5)
