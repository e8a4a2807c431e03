"""Names of weights that differ only in what stands before them."""


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
