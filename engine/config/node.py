"""CfgNode: the tree of settings, merged strictly from defaults, files and the command line."""

import copy
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fvcore.common.config import CfgNode as _CfgNode

from engine.config.errors import ConfigError, nearest_keys
from engine.config.files import read_layers
from engine.config.value_types import MARKS, fit, read_text
from engine.config.yaml_text import dump_yaml, is_plain, load_yaml
from engine.utils.suggest import did_you_mean

DEFAULTS = "__defaults__"
READS = "__reads__"


class CfgNode(_CfgNode):
    """Settings by attribute: `cfg.SOLVER.BASE_LR`.

    Only keys that exist can be merged, with values of the default's type. A node made with
    `new_allowed=True` is free-form: it takes any keys, such as the arguments of an optimizer.
    """

    def __init__(
        self,
        init_dict: Mapping[str, Any] | None = None,
        key_list: list[str] | None = None,
        new_allowed: bool = False,
    ) -> None:
        super().__init__(init_dict, key_list, new_allowed)
        self.__dict__[DEFAULTS] = {}  # of keys merged into, and those with marks
        self.__dict__[READS] = None  # a ReadKeys once reads are tracked

    def merge_from_file(
        self, cfg_filename: str | os.PathLike[str], allow_unsafe: bool = False
    ) -> None:
        """Merge a YAML file, after the files its `_BASE_` names (one or a list, relative to it).

        `allow_unsafe` is for code that gives it: YAML is always read without running any of it.
        """
        self._refuse_if_frozen(f"merge {cfg_filename}")
        for source, tree in read_layers(cfg_filename):
            self._merge(tree, source, self, "")

    def merge_from_list(self, cfg_list: Iterable[Any]) -> None:
        """Merge `KEY VALUE` pairs and `KEY=VALUE` items, mixed as they come on a command line."""
        self._refuse_if_frozen("merge overrides")
        for key, value in _split_overrides(cfg_list):
            if isinstance(value, str):
                value = read_text(value, self._default_at(key))
            for name in reversed(key.split(".")):
                value = {name: value}
            self._merge(value, "command line", self, "")

    def merge_from_other_cfg(self, cfg_other: Mapping[str, Any]) -> None:
        """Merge another config, or a dict of the same shape."""
        self._refuse_if_frozen("merge another config")
        self._merge(cfg_other, "merged config", self, "")

    def dump(self, **kwargs: Any) -> str:
        """The tree as YAML that `merge_from_file` reads back; `kwargs` go to `yaml.dump`."""
        return dump_yaml(self, **kwargs)

    @classmethod
    def load_cfg(cls, cfg_file_obj_or_str: Any) -> "CfgNode":
        """A config from YAML text or an open YAML file."""
        text = cfg_file_obj_or_str
        source = getattr(text, "name", "config text")
        return cls(load_yaml(text if isinstance(text, str | bytes) else text.read(), source))

    @classmethod
    def load_yaml_with_base(cls, filename: str | os.PathLike[str]) -> dict[str, Any]:
        """The content of a YAML file merged over its `_BASE_` files."""
        node = cls(new_allowed=True)
        node.merge_from_file(filename)
        return node

    def keys_of_tree(self, prefix: str = "") -> Iterator[str]:
        """All dotted keys, sections included, in the order they were defined."""
        for key, value in self.items():
            yield f"{prefix}{key}"
            if isinstance(value, CfgNode):
                yield from value.keys_of_tree(f"{prefix}{key}.")

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        reads = self.__dict__.get(READS)
        if reads is not None:
            reads.add(key)
        return value

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        hint = "" if name.startswith("_") else did_you_mean(name, map(str, self))
        raise AttributeError(f"no config key {name} in this section{'; ' if hint else ''}{hint}")

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("COMPUTED_"):
            self._refuse_if_frozen(f"set {name} to {value!r}")
        if isinstance(value, MARKS):
            self.__dict__[DEFAULTS][name] = value
            value = value.spec
        if isinstance(value, dict) and not isinstance(value, CfgNode):
            value = type(self)(value)
        if not is_plain(value) and not isinstance(value, CfgNode):
            raise TypeError(
                f"{name}: a config holds numbers, text, lists and None, not {type(value)}"
            )
        super().__setattr__(name, value)

    def _refuse_if_frozen(self, action: str) -> None:
        if self.is_frozen():
            raise AttributeError(f"cannot {action}: the config is frozen; cfg.defrost() allows it")

    def _merge(self, tree: Any, source: str, root: "CfgNode", section: str) -> None:
        if not isinstance(tree, Mapping):
            raise ConfigError(
                f"{source}: {section.rstrip('.') or 'the config'} is a section, got {tree!r}; "
                f"set its keys, such as {section}{next(iter(self), 'KEY')}"
            )
        for key, value in tree.items():
            full_key = f"{section}{key}"
            if key not in self and not self.is_new_allowed():
                root._refuse_unless_deprecated(full_key, value, source)
                continue
            current = dict.get(self, key)
            if not isinstance(current, CfgNode):
                self._set_leaf(key, value, source, full_key)
            elif value is not None:  # a section whose lines are all commented out says nothing
                current._merge(value, source, root, f"{full_key}.")

    def _refuse_unless_deprecated(self, key: str, value: Any, source: str) -> None:
        """Raise for a key that is not in the tree, or for those below it: a section may be gone
        with all its keys."""
        if self.key_is_deprecated(key):
            return
        gone = {*self.__dict__[self.DEPRECATED_KEYS], *self.__dict__[self.RENAMED_KEYS]}
        if not (isinstance(value, Mapping) and any(one.startswith(f"{key}.") for one in gone)):
            raise ConfigError(_unknown(key, value, source, self))
        for name, below in value.items():
            self._refuse_unless_deprecated(f"{key}.{name}", below, source)

    def _set_leaf(self, key: str, value: Any, source: str, full_key: str) -> None:
        default = self.__dict__[DEFAULTS].setdefault(key, dict.get(self, key))
        try:
            value = fit(value, default)
        except TypeError as error:
            got = f"{full_key} is {value!r} ({type(value).__name__})"
            raise ConfigError(f"{source}: {got}; {error}") from None
        if isinstance(value, Mapping):
            node = type(self)(new_allowed=True)
            node._merge(value, source, node, f"{full_key}.")
            value = node
        self[key] = copy.deepcopy(value)

    def _default_at(self, key: str) -> Any:
        """The default of a dotted key; None if there is none."""
        node: Any = self
        *sections, name = key.split(".")
        for section in sections:
            node = dict.get(node, section) if isinstance(node, CfgNode) else None
        if not isinstance(node, CfgNode):
            return None
        return node.__dict__[DEFAULTS].get(name, dict.get(node, name))


def _unknown(key: str, value: Any, source: str, root: CfgNode) -> str:
    while isinstance(value, Mapping) and len(value) == 1:
        ((name, value),) = value.items()
        key = f"{key}.{name}"
    if root.key_is_renamed(key):
        renamed = root.__dict__[CfgNode.RENAMED_KEYS][key]
        hint = f"it is now called {' - '.join(renamed) if isinstance(renamed, tuple) else renamed}"
    elif key == "_BASE_":
        hint = "_BASE_ works in files only"
    else:
        hint = nearest_keys(key, root.keys_of_tree())
    where = "(all keys: tools/train_net.py --print-config-template)"
    return f"{source}: unknown key {key}\n  {hint}{'   ' if hint else ''}{where}"


def _split_overrides(overrides: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    items = iter(overrides)
    for item in items:
        if not isinstance(item, str):
            raise ConfigError(f"command line: expected a KEY, got {item!r}")
        key, equals, value = item.partition("=")
        if equals:
            yield key, value
            continue
        try:
            yield key, next(items)
        except StopIteration:
            raise ConfigError(
                f"command line: {key} has no value; write {key} VALUE or {key}=VALUE"
            ) from None
