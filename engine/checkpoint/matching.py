"""Names of weights: which belong together though they begin differently, and which fit nothing."""

from collections.abc import Callable, Collection
from typing import Any

from fvcore.common.checkpoint import _IncompatibleKeys
from tabulate import tabulate

MOST_ROWS = 40  # of a table
WRAPPER = "module."  # what DistributedDataParallel puts before the names of its model


def match_by_suffix(saved: list[str], wanted: list[str]) -> dict[str, str]:
    """For each saved name the wanted one that ends alike, the longest first; others are left out.

    `backbone.conv1.weight` finds `conv1.weight`, and the other way round. A wanted name is given
    once, and an equal one before all others.
    """
    candidates = [
        (old != new, -min(len(old), len(new)), old, new)
        for old in saved
        for new in wanted
        if old == new or old.endswith(f".{new}") or new.endswith(f".{old}")
    ]
    matches: dict[str, str] = {}
    taken: set[str] = set()
    for *_, old, new in sorted(candidates, key=lambda one: one[:2]):
        if old not in matches and new not in taken:
            matches[old] = new
            taken.add(new)
    return matches


def shield_own_prefix(saved: dict[str, Any], wanted: Collection[str]) -> None:
    """Put a wrapper's prefix before the saved names, where those of the model itself begin so.

    To be called before fvcore takes it away, as it does wherever all names have it.
    """
    is_own = bool(wanted) and all(name.startswith(WRAPPER) for name in wanted)
    if not is_own or all(name.startswith(2 * WRAPPER) for name in saved):
        return
    for names in (saved, getattr(saved, "_metadata", {})):
        for name in list(names):
            names[f"{WRAPPER}{name}"] = names.pop(name)


def rename_weights(state: dict[str, Any], new_name: Callable[[str], str]) -> None:
    """Give other names to the weights of a state dict; modules, in the list of their versions, are
    asked for with a dot at the end."""
    for name in list(state):
        state[new_name(name)] = state.pop(name)
    versions = getattr(state, "_metadata", {})
    for path in list(versions):
        versions[new_name(f"{path}.").removesuffix(".")] = versions.pop(path)


def mismatch_table(result: _IncompatibleKeys) -> str:
    """What did not fit, a row a weight."""
    misshapen = {name for name, *_ in result.incorrect_shapes}  # these count as missing too
    missing = [name for name in result.missing_keys if name not in misshapen]
    rows = [(name, "in the model only", "") for name in missing]
    rows += [(name, "in the checkpoint only", "") for name in result.unexpected_keys]
    rows += [
        (name, "other shape", f"{saved} in the checkpoint, {wanted} in the model")
        for name, saved, wanted in result.incorrect_shapes
    ]
    more = f"\n… and {len(rows) - MOST_ROWS} more" if len(rows) > MOST_ROWS else ""
    return tabulate(rows[:MOST_ROWS], headers=("weight", "mismatch", "shapes")) + more
