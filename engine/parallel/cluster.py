"""Where torchrun, Slurm or Kubernetes has put this process: they say it in the environment."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.parallel.network import FlagError


@dataclass(frozen=True)
class Place:
    """This process among all processes of a run."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    master: str
    """`host:port` where rank 0 is met."""
    given_by: str

    def __post_init__(self) -> None:
        if self.world_size % self.local_size or self.rank % self.local_size != self.local_rank:
            raise FlagError(
                f"{self.given_by} has made this process rank {self.rank} of {self.world_size} and "
                f"{self.local_rank} of {self.local_size} on its machine; each machine must run the "
                "same number of processes, with ranks that follow each other"
            )

    @property
    def num_machines(self) -> int:
        return self.world_size // self.local_size

    @property
    def machine_rank(self) -> int:
        return self.rank // self.local_size

    def environment(self) -> dict[str, str]:
        """The variables that `env://` and torchrun's programs go by."""
        host, _, port = self.master.rpartition(":")
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
        }


def find_place(environment: Mapping[str, str]) -> Place | None:
    """The place that torchrun, Kubernetes or srun has given this process; None without them."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        # Kubernetes' PyTorchJob says no LOCAL_RANK: there a machine is a pod with one process.
        # It sets the rest for a job of one pod too, which is a machine like any other.
        if "LOCAL_RANK" in environment or int(environment["WORLD_SIZE"]) > 1:
            return _read_torchrun(environment)
    # Without STEP it is the number that the job asked for: in a batch script, that is not srun's.
    elif int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        return _read_slurm(environment)
    return None


def expand_node_list(text: str) -> list[str]:
    """The hosts of a Slurm node list: `n[08-10],gpu5` is n08, n09, n10 and gpu5."""
    hosts = []
    for item in re.findall(r"(?:\[[^]]*]|[^,[])+", text):
        head, _, rest = item.partition("[")
        numbers, _, tail = rest.partition("]")
        for number in _expand_numbers(numbers):
            hosts += [head + number + end for end in expand_node_list(tail) or [""]]
    return hosts


def _expand_numbers(ranges: str) -> Iterator[str]:
    for item in ranges.split(","):
        low, dash, high = item.partition("-")
        if dash:
            yield from (str(n).zfill(len(low)) for n in range(int(low), int(high) + 1))
        else:
            yield item


def _read_torchrun(environment: Mapping[str, str]) -> Place:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if missing:
        raise FlagError(
            f"RANK and WORLD_SIZE are set, {' and '.join(missing)} not: set all that torchrun "
            "sets, or unset them all"
        )
    return Place(
        rank=int(environment["RANK"]),
        world_size=int(environment["WORLD_SIZE"]),
        local_rank=int(environment.get("LOCAL_RANK", 0)),
        local_size=int(environment.get("LOCAL_WORLD_SIZE", 1)),
        master=f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}",
        given_by="the environment (RANK, WORLD_SIZE, …)",
    )


def _read_slurm(environment: Mapping[str, str]) -> Place:
    per_machine = environment["SLURM_STEP_TASKS_PER_NODE"]  # 8(x2): eight on each of two
    if not (same := re.fullmatch(r"(\d+)(?:\(x\d+\))?", per_machine)):
        raise FlagError(
            f"srun runs {per_machine} tasks on the machines; each must run the same number: "
            "give --ntasks-per-node"
        )
    host = expand_node_list(environment["SLURM_STEP_NODELIST"])[0]
    # Below the ports that Linux hands out; two steps of a job may run side by side.
    job, step = int(environment["SLURM_JOB_ID"]), int(environment.get("SLURM_STEP_ID", 0))
    port = 16384 + (64 * job + step) % 16384
    return Place(
        rank=int(environment["SLURM_PROCID"]),
        world_size=int(environment["SLURM_STEP_NUM_TASKS"]),
        local_rank=int(environment["SLURM_LOCALID"]),
        local_size=int(same[1]),
        master=f"{environment.get('MASTER_ADDR', host)}:{environment.get('MASTER_PORT', port)}",
        given_by="srun",
    )
