import os

import pytest
from iopath.common.file_io import PathHandler

from engine.config.errors import ConfigError
from engine.config.files import read_layers
from engine.utils.files import PathManager


def layers(path):
    return [(os.path.basename(name), tree) for name, tree in read_layers(str(path))]


def test_bases_come_before_the_file_in_the_order_they_are_listed(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "root.yaml").write_text("A: 1")
    (tmp_path / "one.yaml").write_text("_BASE_: root.yaml\nA: 2")
    (tmp_path / "two.yaml").write_text("_BASE_: root.yaml\nA: 3")
    (tmp_path / "sub" / "top.yaml").write_text("_BASE_: [../one.yaml, ../two.yaml]\nA: 4")
    assert layers(tmp_path / "sub" / "top.yaml") == [
        ("root.yaml", {"A": 1}),
        ("one.yaml", {"A": 2}),
        ("root.yaml", {"A": 1}),
        ("two.yaml", {"A": 3}),
        ("top.yaml", {"A": 4}),
    ]


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "base.yaml").write_text("A: 1")
    (tmp_path / "top.yaml").write_text("_BASE_: ~/base.yaml")
    assert [name for name, _ in layers("~/top.yaml")] == ["base.yaml", "top.yaml"]


def test_a_circle_of_bases_is_refused_with_the_chain(tmp_path):
    (tmp_path / "a.yaml").write_text("_BASE_: b.yaml")
    (tmp_path / "b.yaml").write_text("_BASE_: ../" + tmp_path.name + "/a.yaml")
    with pytest.raises(ConfigError, match=r"circle: .*a\.yaml -> .*b\.yaml -> .*a\.yaml"):
        layers(tmp_path / "a.yaml")


def test_a_missing_file_is_named_with_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlp.yaml").write_text("")
    with pytest.raises(FileNotFoundError) as error:
        layers("mpl.yaml")
    assert str(error.value) == (
        f"config file mpl.yaml does not exist; looked for from {tmp_path}; did you mean mlp.yaml?"
    )


def test_a_missing_base_is_named_with_the_file_that_names_it(tmp_path):
    (tmp_path / "a.yaml").write_text("_BASE_: nothing/like/it.yaml")
    with pytest.raises(FileNotFoundError, match=r"nothing/like/it.yaml .*named by .*a\.yaml"):
        layers(tmp_path / "a.yaml")


def test_a_folder_is_no_config_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="is a folder; with no config in it"):
        layers(tmp_path)
    for name in ("mlp.yaml", "cnn.yaml", "notes.txt"):
        (tmp_path / name).touch()
    with pytest.raises(FileNotFoundError, match=r"is a folder; name a file in it: cnn\.yaml, mlp"):
        layers(tmp_path)


def test_a_python_config_is_for_the_other_tool(tmp_path):
    with pytest.raises(ConfigError, match=r"a.py is Python, for tools/lazyconfig_train_net.py"):
        layers(tmp_path / "a.py")


def test_a_base_that_is_no_path_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("_BASE_: 5")
    with pytest.raises(ConfigError, match=r"a.yaml: _BASE_ is 5; expected a file or a list"):
        layers(tmp_path / "a.yaml")


class StoreHandler(PathHandler):
    """A remote store, kept in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def _get_supported_prefixes(self):
        return ["store://"]

    def _open(self, path, mode="r", **kwargs):
        return open(os.path.join(self.folder, path.removeprefix("store://")), mode)


def test_remote_files_come_through_the_path_manager(tmp_path, monkeypatch):
    monkeypatch.setattr(PathManager, "_path_handlers", PathManager._path_handlers.copy())
    (tmp_path / "sub").mkdir()
    (tmp_path / "base.yaml").write_text("A: 1")
    (tmp_path / "sub" / "mid.yaml").write_text("_BASE_: ../base.yaml")
    (tmp_path / "loop.yaml").write_text("_BASE_: sub/../loop.yaml")
    (tmp_path / "top.yaml").write_text("_BASE_: store://sub/mid.yaml")
    PathManager.register_handler(StoreHandler(tmp_path), allow_override=True)
    names = [name for name, _ in layers(tmp_path / "top.yaml")]
    assert names == ["base.yaml", "mid.yaml", "top.yaml"]
    with pytest.raises(ConfigError, match="circle"):
        layers("store://loop.yaml")


def test_a_remote_file_without_a_handler_says_what_is_missing():
    with pytest.raises(FileNotFoundError, match="handler for gopher:// registered"):
        layers("gopher://host/a.yaml")
