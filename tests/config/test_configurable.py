import inspect

import pytest
from omegaconf import OmegaConf

from engine.config import CfgNode, configurable


class Model:
    @configurable
    def __init__(self, width: int, depth: int = 2) -> None:
        """Make it."""
        self.shape = (width, depth)

    @classmethod
    def from_config(cls, cfg):
        return {"width": cfg.WIDTH}


class Sized(Model):
    @classmethod
    def from_config(cls, cfg, factor=1):
        return {"width": cfg.WIDTH * factor}


@configurable(from_config=lambda cfg: {"width": cfg.WIDTH})
def build(width, depth=2):
    return (width, depth)


@pytest.mark.parametrize("cfg", [CfgNode({"WIDTH": 8}), OmegaConf.create({"WIDTH": 8})])
def test_an_object_is_built_from_arguments_or_from_a_config(cfg):
    assert Model(3).shape == Model(width=3).shape == (3, 2)
    assert Model(cfg).shape == Model(cfg=cfg).shape == (8, 2)
    assert Model(cfg, depth=5).shape == (8, 5)
    assert Model(cfg, width=1).shape == (1, 2)


def test_a_function_is_called_with_arguments_or_with_a_config():
    cfg = CfgNode({"WIDTH": 8})
    assert build(3) == (3, 2)
    assert build(cfg) == (8, 2)
    assert build(cfg, depth=5) == (8, 5)
    assert build.from_config(cfg) == {"width": 8}


def test_a_subclass_reads_the_config_its_own_way_and_may_take_more():
    cfg = CfgNode({"WIDTH": 8})
    assert Sized(cfg, factor=2).shape == Sized(cfg, 2).shape == (16, 2)
    assert Sized(cfg, factor=2, depth=1).shape == (16, 1)


def test_wrong_names_and_too_many_positions_are_type_errors():
    cfg = CfgNode({"WIDTH": 8})
    with pytest.raises(TypeError, match="dpeth"):
        Model(cfg, dpeth=5)
    with pytest.raises(TypeError, match="positional"):
        Model(cfg, 5)


def test_doc_and_annotations_are_kept():
    assert Model.__init__.__doc__ == "Make it."
    assert list(inspect.signature(Model).parameters) == ["width", "depth"]
    assert Model.__init__.__annotations__["width"] is int


def test_a_class_without_from_config_says_so():
    class Bare:
        @configurable
        def __init__(self, width):
            pass

    with pytest.raises(AttributeError, match=r"Bare .* has no classmethod from_config"):
        Bare(CfgNode())
    Bare(3)


def test_a_from_config_that_is_no_classmethod_says_so():
    class Plain:
        @configurable
        def __init__(self, width):
            pass

        def from_config(self, cfg):
            return {}

    with pytest.raises(TypeError, match="must be a @classmethod"):
        Plain(CfgNode())


def test_a_from_config_that_returns_no_dict_says_so():
    with pytest.raises(TypeError, match="must return a dict of arguments, got 5"):
        configurable(from_config=lambda cfg: 5)(lambda width: width)(CfgNode())


def test_the_decorator_says_how_it_is_used():
    with pytest.raises(TypeError, match="write @configurable"):
        configurable(build)
    with pytest.raises(TypeError, match="needs from_config"):
        configurable()
    with pytest.raises(TypeError, match="must be a function"):
        configurable(from_config=5)
