"""EndlessIterator: the batches of a loader over and over."""

from collections.abc import Iterable, Iterator
from typing import Any


class EndlessIterator(Iterator[Any]):
    """Starts an iterable again whenever it ends; refuses one that gives nothing."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader
        self._iterator = iter(loader)
        self._given = 0

    def __next__(self) -> Any:
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._iterator = iter(self._loader)
            try:
                batch = next(self._iterator)
            except StopIteration:
                raise self._nothing_left() from None
        self._given += 1
        return batch

    def _nothing_left(self) -> Exception:
        kind = type(self._loader).__name__
        if self._given == 0:
            return ValueError(f"the data loader ({kind}) gave no batch: its data set is empty?")
        return ValueError(
            f"the data loader ({kind}) ended after {self._given} batches and cannot be started "
            "again; pass one that can (a DataLoader, a list), or an endless one"
        )


def batches_per_epoch(loader: Iterable[Any]) -> int | None:
    """How many batches one pass over a loader gives: its `epoch_length`, else its length."""
    if hasattr(loader, "epoch_length"):
        return loader.epoch_length
    try:
        return len(loader) or None  # type: ignore[arg-type]
    except Exception:  # whatever a loader raises that does not know
        return None
