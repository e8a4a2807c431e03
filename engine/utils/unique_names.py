"""Names for objects by their class, unique within a list."""

from collections import Counter
from collections.abc import Iterable


def unique_names(objects: Iterable[object]) -> list[str]:
    """`EvalHook`, `EvalHook#2`, …: the class of each object, numbered from the second on."""
    seen: Counter[str] = Counter()
    names = []
    for one in objects:
        name = type(one).__qualname__
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names
