"""The random states of all ranks: a run goes on exactly if each rank gets its own back."""

import logging
from typing import Any

from engine.parallel import comm
from engine.utils.random_state import set_random_state

logger = logging.getLogger(__name__)


def restore_random_states(states: list[dict[str, Any]]) -> None:
    """Give this rank its state back; a rank that has none keeps the seed it was started with."""
    rank, world_size = comm.get_rank(), comm.get_world_size()
    if rank < len(states):
        set_random_state(states[rank])
    if len(states) != world_size and rank == 0:
        logger.warning(
            "Random states of %d processes were saved and there are %d: the run goes on, but not "
            "bit for bit as it would have",
            len(states),
            world_size,
        )
