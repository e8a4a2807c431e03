"""Totals: sums over batches and over ranks."""

import torch

from engine.parallel.comm import all_gather

BATCHES_AT_ONCE = 64


class NothingEvaluatedError(ValueError):
    """An evaluation had no batches at all."""


class Totals:
    """Named sums of tensors, exact however unevenly the batches are spread over the ranks.

    What is added stays on its device and is fetched for many batches at once, so that the model
    is not stopped for each. Sums are kept in float64, those of integers in int64::

        totals.add(errors=(outputs - targets).abs().sum(), samples=len(targets))
        sums = totals.gather()
        error = sums["errors"] / sums["samples"]
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._waiting: dict[str, list[torch.Tensor]] = {}

    def add(self, **values: torch.Tensor | float) -> None:
        """Add a batch's values, which must have the same shape each time."""
        for name, value in values.items():
            waiting = self._waiting.setdefault(name, [])
            if not isinstance(value, torch.Tensor):
                dtype = torch.float64 if isinstance(value, float) else None
                value = torch.tensor(value, dtype=dtype)
            waiting.append(value)
            if len(waiting) == BATCHES_AT_ONCE:
                self._fetch(name)

    def gather(self) -> dict[str, torch.Tensor]:
        """The sums over all ranks, on every rank, on the CPU. All ranks must call it."""
        for name in self._waiting:
            self._fetch(name)
        ranks = all_gather(self._sums)
        names = sorted({name for sums in ranks for name in sums})
        if not names:
            raise NothingEvaluatedError("no batch was evaluated on any rank: an empty test set?")
        # In order of rank everywhere, so that all ranks get the same bits.
        return {
            name: torch.stack([sums[name] for sums in ranks if name in sums]).sum(0)
            for name in names
        }

    def _fetch(self, name: str) -> None:
        waiting = self._waiting[name]
        if waiting:
            values = torch.stack(waiting).cpu()
            values = values.double() if values.is_floating_point() else values.long()
            self._sums[name] = self._sums.get(name, 0) + values.sum(0)
            waiting.clear()
