"""Lazy configs as plain values and as text."""

from typing import Any

from omegaconf import OmegaConf

from engine.config.instantiate import TARGET
from engine.config.yaml_text import is_plain
from engine.utils.registry import locate


def to_plain(cfg: Any, *, strict: bool = True) -> Any:
    """A lazy config as dicts, lists and scalars, each target by its dotted name.

    What YAML cannot hold raises a ValueError that names every such key; without `strict` it stays.
    """
    unsaved: list[str] = []
    plain = _plain(OmegaConf.to_container(cfg), "", unsaved)
    if strict and unsaved:
        raise ValueError(
            "YAML cannot hold\n  "
            + "\n  ".join(unsaved)
            + "\nuse numbers, text, lists and dicts, and for anything else a LazyCall of something "
            "that can be imported"
        )
    return plain


def target_name(target: object) -> str | None:
    """The shortest dotted name under which `locate` finds a class or function; None if none."""
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if not module or not name:
        return None
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        dotted = ".".join([*parts[:length], name])
        try:
            if locate(dotted) == target:
                return dotted
        except ImportError:
            continue
    return None


def call_text(value: Any, indent: int = 0) -> str:
    """A value as Python would write it, a node with a target as the call it describes."""
    if isinstance(value, dict) and TARGET in value:
        target = value[TARGET]
        name = target if isinstance(target, str) else call_text(target, indent)
        arguments = [(f"{key}=", item) for key, item in value.items() if key != TARGET]
        return _bracketed(f"{name}(", arguments, ")", indent)
    if isinstance(value, dict):
        return _bracketed("{", [(f"{key!r}: ", item) for key, item in value.items()], "}", indent)
    if isinstance(value, list):
        return _bracketed("[", [("", item) for item in value], "]", indent)
    return (callable(value) and target_name(value)) or repr(value)


def _bracketed(start: str, items: list[tuple[str, Any]], end: str, indent: int) -> str:
    """On one line if that is short, else an item a line."""
    texts = [label + call_text(item, indent + 4) for label, item in items]
    line = f"{start}{', '.join(texts)}{end}"
    if "\n" not in line and len(line) + indent <= 80:
        return line
    margin = " " * indent
    return "\n".join([start, *(f"{margin}    {text}," for text in texts), f"{margin}{end}"])


def _plain(value: Any, path: str, unsaved: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item, f"{path}.{key}", unsaved) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, f"{path}.{index}", unsaved) for index, item in enumerate(value)]
    if path.endswith(f".{TARGET}") and not isinstance(value, str):
        value = target_name(value) or value
    if not is_plain(value):
        unsaved.append(f"{path.removeprefix('.')}: {value!r}")
    return value
