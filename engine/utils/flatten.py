"""Trees of settings as one level."""

from typing import Any


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of nested dicts by their path: {"a": {"b": 1}} gives {"a.b": 1}."""
    if not isinstance(node, dict):
        return {prefix: node}
    return {
        name: value
        for key, one in node.items()
        for name, value in flatten(one, f"{prefix}.{key}" if prefix else str(key)).items()
    }
