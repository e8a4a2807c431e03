"""In what two configs differ."""

from typing import Any

from tabulate import tabulate

from engine.config.yaml_text import load_yaml


def config_differences(saved: str, now: str) -> str:
    """A table of the settings that differ between two dumps of configs; "" if none does."""
    before, after = _flat(load_yaml(saved, "saved config")), _flat(load_yaml(now, "config"))
    rows = [
        (key, before.get(key, "-"), after.get(key, "-"))
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]
    return (
        tabulate(rows, headers=("setting", "saved", "now"), disable_numparse=True) if rows else ""
    )


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {prefix: node}
    return {
        name: value
        for key, one in node.items()
        for name, value in _flat(one, f"{prefix}.{key}" if prefix else str(key)).items()
    }
