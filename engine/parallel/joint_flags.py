"""JointFlags: what one rank wants is known to all, and no rank waits for it."""

from time import monotonic

import torch
import torch.distributed as dist

from engine.parallel import comm

SECONDS = 0.3  # between two messages: each costs as much as a small step
MOST_CALLS = 100


class JointFlags:
    """Flags that any rank may raise. All ranks ask equally often, and get the same answers.

    Ranks send theirs about three times a second, in calls that they agree on, and know what all
    have sent in the call after that: by then it has long arrived, so that nobody waits. In the
    first calls they send more often: a flag in a short run is known before the run is over.
    """

    def __init__(self) -> None:
        self._work: dist.Work | None = None
        self._sent = torch.zeros(0, device="cpu")
        self._calls = self._next_call = self._last_call = 0
        self._last_time = 0.0

    def ask(self, *flags: bool) -> list[bool]:
        """Hand in this rank's flags; returns those that some rank had sent with the call before."""
        known = self._answer() if self._work else [False] * len(flags)
        if self._calls >= self._next_call:
            self._send(flags)
        self._calls += 1
        return known

    def settle(self, *flags: bool) -> list[bool]:
        """Which flags some rank raises now. Waits for all ranks."""
        if self._work:
            self._answer()
        self._send(flags)
        return self._answer()

    def _send(self, flags: tuple[bool, ...]) -> None:
        now, calls = monotonic(), self._calls - self._last_call
        pace = (now - self._last_time) / calls if calls else SECONDS
        wait = max(1, min(int(SECONDS / max(pace, 1e-9)), MOST_CALLS, self._calls // 4))
        self._last_call, self._last_time = self._calls, now
        self._sent = torch.tensor([*flags, wait], dtype=torch.uint8, device="cpu")
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        self._work = comm.flag_group(dist.group.WORLD).allreduce([self._sent], options)

    def _answer(self) -> list[bool]:
        if self._work is not None:
            self._work.wait()
            self._work = None
        *flags, wait = self._sent.tolist()
        self._next_call = self._last_call + wait
        return list(map(bool, flags))
