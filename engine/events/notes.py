"""Notes: ad-hoc attributes of a storage."""

from typing import Any

import numpy as np

from engine.utils.suggest import hint_at


class NeverSetError(AttributeError):
    """A note was read that nobody made.

    The close names are looked for when it is shown: `hasattr` in each step must stay cheap.
    """

    def __str__(self) -> str:
        known = [*vars(self.obj), *dir(type(self.obj))]
        hint = hint_at(str(self.name), [one for one in known if not one.startswith("_")])
        return f"storage.{self.name} was never set{hint}"


def plain_notes(attributes: dict[str, Any]) -> dict[str, Any]:
    """Copies of the public attributes that are plain values; objects of other kinds are left out.

    NumPy numbers become Python ones, and relatives of dict, list and tuple become these.
    """
    notes = {}
    for name, value in attributes.items():
        if not name.startswith("_"):
            try:
                notes[name] = _plain(value)
            except TypeError:
                continue
    return notes


def _plain(value: Any) -> Any:
    if isinstance(value, (np.number, np.bool_)):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, dict):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, tuple):
        return tuple(_plain(one) for one in value)
    raise TypeError(f"not a plain value: {type(value).__name__}")
