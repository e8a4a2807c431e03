"""BackgroundSaves: a state is copied at once, and written while training goes on."""

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any

import torch

from engine.checkpoint.plain import as_plain, whole

logger = logging.getLogger(__name__)

WORTH_A_WORD = 0.5  # seconds that training has waited for a save


class BackgroundSaves:
    """Has states written by one thread, one after the other, each from a copy of its own.

    The memory of a copy is used again by later ones. A run holds one copy in host memory, and a
    second where a save begins while the one before it is being written; a third save waits. The
    process does not end before all is written.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._copies = (StateCopy(), StateCopy())
        self._jobs: list[Future[None]] = []  # of these copies, the older one first

    def submit(self, write: Callable[[dict[str, Any]], None], state: dict[str, Any]) -> None:
        """Copy the state now, and have `write` called with the copy."""
        self._await_free_copy()
        copy = next(copy for copy in self._copies if not copy.is_used)
        data = copy.take(state)
        copy.is_used = True
        self._jobs.append(self._thread.submit(_write_and_free, write, data, copy))

    def wait(self) -> None:
        """Return when all is written; raises if the last save has failed."""
        jobs, self._jobs = self._jobs, []
        errors = [job.exception() for job in jobs]
        self._raise_mistake(errors)
        if errors and errors[-1] is not None:
            raise errors[-1]

    def _await_free_copy(self) -> None:
        if all(copy.is_used for copy in self._copies):
            start = perf_counter()
            self._jobs[0].exception()
            if (waited := perf_counter() - start) > WORTH_A_WORD:
                logger.warning(
                    "Training waited %.1f s for a save: saves come faster than they can be written",
                    waited,
                )
        done = [job for job in self._jobs if job.done()]
        self._jobs = [job for job in self._jobs if not job.done()]
        self._raise_mistake([job.exception() for job in done])

    @staticmethod
    def _raise_mistake(errors: Iterable[BaseException | None]) -> None:
        for error in errors:
            # A disk may have space again by now; anything else is a mistake in the program.
            if error is not None and not isinstance(error, (OSError, FloatingPointError)):
                raise error


class StateCopy:
    """A copy of a state in host memory. The next one is made in the same memory."""

    def __init__(self) -> None:
        self.is_used = False
        self._memory: dict[str, torch.Tensor] = {}

    def take(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state as plain values, with tensors that nothing else changes."""
        before, self._memory = self._memory, {}  # of tensors that are gone the memory is freed
        seen: dict[tuple, torch.Tensor] = {}
        under_way: set[torch.device] = set()  # devices with copies that are not waited for yet

        def copy(tensor: torch.Tensor, where: str) -> torch.Tensor:
            tensor = whole(tensor, where).detach()
            if tensor.layout != torch.strided:
                return tensor.cpu().clone()
            # Weights that share memory are saved once, as they would be without a copy.
            place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            if tensor.numel() and place in seen:
                return seen[place]
            memory = before.get(where)
            if memory is None or (memory.shape, memory.dtype) != (tensor.shape, tensor.dtype):
                memory = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            self._memory[where] = seen[place] = memory
            if tensor.is_cuda:
                under_way.add(tensor.device)
            return memory.copy_(tensor, non_blocking=tensor.is_cuda)

        data = {key: as_plain(value, key, copy) for key, value in state.items()}
        for device in under_way:
            torch.cuda.synchronize(device)
        return data


def _write_and_free(
    write: Callable[[dict[str, Any]], None], data: dict[str, Any], copy: StateCopy
) -> None:
    try:
        write(data)
    finally:
        copy.is_used = False
