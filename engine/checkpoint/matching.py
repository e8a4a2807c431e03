"""Names of weights: which belong together though they begin differently, and which fit nothing."""

from collections.abc import Callable, Collection
from typing import Any

from fvcore.common.checkpoint import _IncompatibleKeys
from tabulate import tabulate
from torch import nn

from engine.parallel.fsdp import shard_like
from engine.utils.wrapping import plain_names, wrapped_names

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


def plain_state(part: Any) -> Any:
    """The state of a part of a run; that of a model has the names of one that is not wrapped."""
    state = part.state_dict()
    if isinstance(part, nn.Module):
        _rename(state, plain_names(part))
    return state


def fit_weights(saved: dict[str, Any], model: nn.Module) -> None:
    """Have saved weights be named and cut as those of the model, which may be wrapped."""
    wanted = model.state_dict()
    _rename(saved, wrapped_names(model, wanted))
    for name in filter(wanted.__contains__, saved):  # all ranks in the same order
        saved[name] = shard_like(saved[name], wanted[name])


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


def _rename(state: dict[str, Any], new_name: Callable[[str], str]) -> None:
    for name in list(state):
        state[new_name(name)] = state.pop(name)
    versions = getattr(state, "_metadata", {})  # of modules, by their paths
    for path in list(versions):
        renamed = new_name(f"{path}." if path else "")
        versions[renamed.removesuffix(".")] = versions.pop(path)
