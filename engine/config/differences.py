"""In what two configs differ."""

from tabulate import tabulate

from engine.config.yaml_text import load_yaml
from engine.utils.flatten import flatten


def config_differences(saved: str, now: str) -> str:
    """A table of the settings that differ between two dumps of configs; "" if none does."""
    before, after = flatten(load_yaml(saved, "saved config")), flatten(load_yaml(now, "config"))
    rows = [
        (key, before.get(key, "-"), after.get(key, "-"))
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]
    return (
        tabulate(rows, headers=("setting", "saved", "now"), disable_numparse=True) if rows else ""
    )
