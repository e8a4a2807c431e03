"""StopDecision: whether a run ends early, which all of its processes decide together."""

import logging
from collections.abc import Sequence

from engine.parallel import comm
from engine.parallel.joint_flags import JointFlags

logger = logging.getLogger(__name__)


class StopDecision:
    """Collects what asks a run to stop, on this rank, and tells what all ranks do.

    A stop is for good, or asks that the run be continued (`requeue`). With several processes what
    one of them wants is done by all, some steps later; until then it changes nothing. `reasons` are
    those that were saved with the run; `is_made` says that it had stopped for them.

    Likewise a rank may want the run to be shorter or longer (`wanted_length`); once all ranks know
    that one does (`asks_for_length`), they `agree_on_length`.
    """

    def __init__(self, reasons: Sequence[str] = (), is_made: bool = False) -> None:
        self.reasons = list(reasons)
        self.final_reasons = list(reasons)  # those of them that end the run for good
        self.asks_requeue = False  # what this rank wants
        self.requeue = False  # what all ranks do
        self.wanted_length: int | None = None
        self.asks_for_length = False
        self._is_made = is_made
        self._joint = JointFlags() if comm.get_world_size() > 1 else None

    def ask(self, reason: str, requeue: bool) -> None:
        """Ask to stop. It may come in a signal handler: nothing is written or locked here."""
        if requeue:
            self.asks_requeue = True
        else:
            self.final_reasons.append(reason)
        self.reasons.append(reason)

    def is_made(self) -> bool:
        """Whether to stop now; all ranks ask before each step."""
        if self._joint is None:
            return bool(self.reasons)
        is_final, requeue, is_changed = self._joint.ask(*self._flags())
        self.asks_for_length = self.asks_for_length or is_changed
        return self._is_made or is_final or requeue

    def agree(self) -> None:
        """Decide now, and not some steps later. All ranks call it, where they meet anyway."""
        if self._joint is not None:
            is_final, requeue, is_changed = self._joint.settle(*self._flags())
            self.asks_for_length = self.asks_for_length or is_changed
            self._is_made = self._is_made or is_final or requeue

    def agree_on_length(self, length: int) -> int:
        """How long the run is to be, which was to be so long: of several wishes it is the shortest.
        All ranks call it."""
        wanted = enumerate(comm.all_gather(self.wanted_length))
        wishes = [(wish, rank) for rank, wish in wanted if wish is not None]
        self.wanted_length, self.asks_for_length = None, False
        if wishes:
            length, rank = min(wishes)
            logger.info("max_iter is %d from now on, as rank %d asks for", length, rank)
        return length

    def settle(self) -> None:
        """Make the ranks agree on why the steps ended. All call it, after the last one."""
        flags = self._flags() if self._joint is None else self._joint.settle(*self._flags())
        is_final, self.requeue, _ = flags
        if self._joint is None or not (is_final or self.requeue):
            return
        of_ranks = comm.all_gather((self.final_reasons, self.reasons))
        if is_final and not self.final_reasons:
            self.ask(_first_reason([final for final, _ in of_ranks]), requeue=False)
        elif self.requeue and not self.reasons:
            self.reasons.append(_first_reason([reasons for _, reasons in of_ranks]))

    def _flags(self) -> list[bool]:
        return [bool(self.final_reasons), self.asks_requeue, self.wanted_length is not None]


def _first_reason(of_ranks: list[list[str]]) -> str:
    rank, reasons = next((rank, one) for rank, one in enumerate(of_ranks) if one)
    return f"{reasons[0]} (on rank {rank})"
