"""StopDecision: whether a run ends early, which all of its processes decide together."""

from collections.abc import Sequence

from engine.parallel import comm
from engine.parallel.joint_flags import JointFlags


class StopDecision:
    """Collects what asks a run to stop, on this rank, and tells what all ranks do.

    A stop is for good, or asks that the run be continued (`requeue`). With several processes what
    one of them wants is done by all, some steps later; until then it changes nothing. `reasons` are
    those that were saved with the run; `is_made` says that it had stopped for them.
    """

    def __init__(self, reasons: Sequence[str] = (), is_made: bool = False) -> None:
        self.reasons = list(reasons)
        self.final_reasons = list(reasons)  # those of them that end the run for good
        self.asks_requeue = False  # what this rank wants
        self.requeue = False  # what all ranks do
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
        return self._is_made or any(self._joint.ask(*self._flags()))

    def agree(self) -> None:
        """Decide now, and not some steps later. All ranks call it, where they meet anyway."""
        if self._joint is not None and any(self._joint.settle(*self._flags())):
            self._is_made = True

    def settle(self) -> None:
        """Make the ranks agree on why the steps ended. All call it, after the last one."""
        flags = self._flags() if self._joint is None else self._joint.settle(*self._flags())
        is_final, self.requeue = flags
        if is_final and not self.final_reasons:
            self.ask("another process asked for it", requeue=False)
        elif self.requeue and not self.reasons:
            self.reasons.append("another process asked for it")

    def _flags(self) -> list[bool]:
        return [bool(self.final_reasons), self.asks_requeue]
