"""YAML as configs write it: plain values only, nothing is ever run.

On top of YAML 1.1, `1e-3` is a number, `(1, 2)` a tuple and `None` null wherever they stand
unquoted. Dates stay text, and a key written twice is an error.
"""

import ast
import re
import warnings
from typing import Any

import yaml

from engine.config.errors import ConfigError

_PLAIN_TYPES = frozenset({bool, int, float, str, list, tuple, dict, type(None)})

_RESOLVERS = (
    (
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$"),
        "-+.0123456789",
    ),
    ("tag:yaml.org,2002:null", re.compile("None$"), "N"),
    ("!tuple", re.compile(r"\(.*\)$", re.DOTALL), "("),
)


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key.value} is there twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if node in self.recursive_objects:
            raise yaml.MarkedYAMLError(
                problem="an alias (*) stands within what it stands for",
                problem_mark=node.start_mark,
            )
        return super().construct_object(node, deep=True)  # else such an alias would go unnoticed

    def construct_tuple(self, node: Any) -> Any:
        text = self.construct_scalar(node)
        value = parse_literal(text)
        return value if isinstance(value, tuple) else text


class _Dumper(yaml.SafeDumper):
    """Shares the loader's rules, so that text which looks like a value is quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> Any:
        # Unquoted, PyYAML folds rare line breaks such as \x85 into spaces.
        style = None if text.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Loader.add_constructor("!tuple", _Loader.construct_tuple)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_multi_representer(dict, _Dumper.represent_dict)
for _tag, _pattern, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(_tag, _pattern, list(_first))
    _Dumper.add_implicit_resolver(_tag, _pattern, list(_first))


def is_plain(value: Any) -> bool:
    """Whether YAML can hold a value: exact types, as NumPy's float is a float but not plain."""
    return type(value) in _PLAIN_TYPES


def load_yaml(text: str | bytes, source: str) -> dict[str, Any]:
    """The mapping that YAML text holds; `source` names the file in errors."""
    try:
        tree = yaml.load(text, _Loader)
    except yaml.constructor.ConstructorError as error:
        raise ConfigError(
            f"{source}{_line(error)}: {error.problem}; "
            "a config holds plain values only: numbers, text, lists and mappings"
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or error
        raise ConfigError(f"{source}{_line(error)}: not valid YAML: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{source}: it is nested too deeply") from None
    if not isinstance(tree, dict | None):
        raise ConfigError(f"{source}: expected KEY: value lines, got {tree!r:.60}")
    return tree or {}


def dump_yaml(value: Any, **kwargs: Any) -> str:
    """Write plain values as YAML that `load_yaml` reads back; tuples become lists."""
    return yaml.dump(value, Dumper=_Dumper, **{"sort_keys": False, "allow_unicode": True, **kwargs})


def parse_value(text: str) -> Any:
    """What a value typed on a command line means: a Python literal, else YAML, else text."""
    value = parse_literal(text)
    if not isinstance(value, str) or value != text or "#" in text or not text.strip():
        return value
    try:
        value = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    return value if is_plain(value) and not isinstance(value, str) else text


def parse_literal(text: str) -> Any:
    """The Python literal that `text` spells, or `text` itself."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in somebody's text is not our affair
            value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return value if is_plain(value) else text


def _line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f", line {mark.line + 1}" if mark else ""
