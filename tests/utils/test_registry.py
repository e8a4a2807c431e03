import collections
import json
import sys

import pytest

from engine.utils.registry import Registry, locate, locate_function


@pytest.fixture
def models():
    models = Registry("MODEL")

    @models.register()
    class MLP:
        pass

    @models.register
    class ConvNet:
        pass

    return models


def test_registered_classes_are_found_by_name(models):
    assert "MLP" in models
    assert models.get("MLP").__name__ == "MLP"
    assert [name for name, _ in models] == ["MLP", "ConvNet"]


def test_a_call_registers_and_returns_the_object(models):
    assert models.register(json.JSONDecoder) is json.JSONDecoder
    assert models.get("JSONDecoder") is json.JSONDecoder


def test_an_unknown_name_gets_the_nearest_and_all_known(models):
    with pytest.raises(KeyError) as caught:
        models.get("convnet")
    message = caught.value.args[0]
    assert "no 'convnet' in the MODEL registry" in message
    assert message.endswith("which has ConvNet, MLP; did you mean ConvNet?")


def test_an_empty_registry_asks_for_the_import():
    with pytest.raises(KeyError, match="imported"):
        Registry("MODEL").get("MLP")


def test_a_second_object_of_a_name_is_refused_with_both_places(models):
    with pytest.raises(ValueError, match="'MLP' is in the MODEL registry already") as caught:

        @models.register()
        class MLP:
            pass

    first, second = str(caught.value).split("cannot add")
    assert f"({__file__}:" in first
    assert f"({__file__}:" in second
    assert models.get("MLP") is not None


def test_a_builtin_has_no_source_but_a_name(models):
    models.register(collections.OrderedDict)
    with pytest.raises(ValueError, match="OrderedDict"):
        models.register(collections.OrderedDict)


@pytest.mark.parametrize(
    "name", ["json.decoder.JSONDecoder", "json.decoder:JSONDecoder", "json:decoder.JSONDecoder"]
)
def test_an_object_is_located_by_dots_or_a_colon(name):
    assert locate(name) is json.decoder.JSONDecoder


def test_modules_and_methods_are_located_too():
    assert locate("json.decoder") is json.decoder
    assert locate("json.decoder.JSONDecoder.decode") is json.decoder.JSONDecoder.decode


def test_what_a_config_names_can_be_called():
    assert locate_function("json:loads") is json.loads
    with pytest.raises(KeyError, match=r"'math:pi' is no class or function, but 3.14"):
        locate_function("math:pi")


def test_dot_means_the_module_and_colon_the_attribute(tmp_path, monkeypatch):
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher/__init__.py").write_text("from launcher.launch import launch\n")
    (tmp_path / "launcher/launch.py").write_text("def launch(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert locate("launcher.launch") is sys.modules["launcher.launch"]
    assert locate("launcher:launch") is locate("launcher.launch.launch")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.Thing", "importing nowhere: No module named 'nowhere'"),
        (
            "json.decoder.JSONDecoda",
            "found json.decoder, which has no 'JSONDecoda'; did you mean JSONDecoder",
        ),
        ("json:decoda", "found json, which has no 'decoda'; did you mean decoder"),
        ("json.decoda.JSONDecoder", "found json, which has no 'decoda'; did you mean decoder"),
        ("json.decoda:JSONDecoder", "found json, which has no 'decoda'; did you mean decoder"),
        ("json.quite_else", "found json, which has no 'quite_else'$"),
        ("json.decoder:", "expected 'package.module.Class' or 'package.module:Class'"),
        ("", "expected 'package.module.Class'"),
        ("configs/a.py", "expected 'package.module.Class'"),
    ],
)
def test_what_is_missing_is_named(name, message):
    with pytest.raises(ImportError, match=message):
        locate(name)


def test_a_dependency_that_is_missing_inside_a_module_is_named(tmp_path, monkeypatch):
    (tmp_path / "needy.py").write_text("import absent_dependency\nclass Model: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="importing needy: No module named 'absent_dependency'"):
        locate("needy.Model")
