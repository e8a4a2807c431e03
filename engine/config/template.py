"""The tree of defaults as a YAML file with its comments."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator

from engine.config.defaults import get_cfg
from engine.config.node import CfgNode
from engine.config.yaml_text import dump_yaml


def config_template() -> str:
    """All keys with their defaults and what they mean, as YAML: a config file to cut down."""
    comments = _comments(inspect.getsource(sys.modules[get_cfg.__module__]))
    return "\n".join(_lines(get_cfg(), comments, "")).lstrip("\n") + "\n"


def _comments(source: str) -> dict[str, list[str]]:
    """The comment lines right above each `_C.KEY = value`, by key."""
    lines = source.splitlines()
    comments = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute):
            first = last = statement.lineno - 1
            while lines[first - 1].startswith("#"):
                first -= 1
            key = ast.unparse(statement.targets[0]).removeprefix("_C.")
            comments[key] = lines[first:last]
    return comments


def _lines(node: CfgNode, comments: dict[str, list[str]], section: str) -> Iterator[str]:
    for key, value in node.items():
        if isinstance(value, CfgNode) and not section:
            yield ""
        yield from comments[f"{section}{key}"]
        if isinstance(value, CfgNode) and value:
            yield f"{key}:"
            below = "\n".join(_lines(value, comments, f"{section}{key}."))
            yield textwrap.indent(below, "  ")
        else:
            line = dump_yaml({key: value}, default_flow_style=True, width=1000)
            yield line.strip()[1:-1]  # without the braces of the one-key mapping
