"""Name the nearest known names when somebody mistypes one."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence for the end of an error message: the close matches of `name`, or ''.

    Matching ignores case, so `adamw` finds `AdamW`.
    """
    by_folded = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), list(by_folded), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(by_folded[match] for match in close)}?" if close else ""


def hint_at(name: str, known: Iterable[str]) -> str:
    """The same after a semicolon, or ''."""
    suggestion = did_you_mean(name, known)
    return f"; {suggestion}" if suggestion else ""
