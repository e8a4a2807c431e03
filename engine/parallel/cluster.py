"""Where torchrun, Slurm, Kubernetes or MPI has put this process: they say it in the environment."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from engine.parallel.network import FlagError

MPIRUN = [  # how Open MPI, and MPICH and what stems from it, name a process's place
    [f"OMPI_COMM_WORLD_{name}" for name in ("SIZE", "RANK", "LOCAL_SIZE", "LOCAL_RANK")],
    ["PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"],
]


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
    """The place that torchrun, Kubernetes, mpirun or srun has given this process; None without."""
    # Kubernetes' PyTorchJob says no LOCAL_RANK: there a machine is a pod with one process. It sets
    # the rest for a job of one pod too, which is a machine like any other.
    is_named = bool(environment.get("RANK") and environment.get("WORLD_SIZE"))
    if is_named and ("LOCAL_RANK" in environment or _read_number(environment, "WORLD_SIZE") > 1):
        return _read_torchrun(environment)
    for names in MPIRUN:  # before Slurm, which may have started mpirun
        if all(map(environment.get, names)) and _read_number(environment, names[0]) > 1:
            return _read_mpirun(environment, names)
    # Without STEP it is the number that the job asked for: in a batch script, that is not srun's.
    if _read_number(environment, "SLURM_STEP_NUM_TASKS", default="1") > 1:
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
    master = ("MASTER_ADDR", "MASTER_PORT")
    _refuse_missing(environment, "RANK and WORLD_SIZE are", "torchrun", master)
    world_size = _read_number(environment, "WORLD_SIZE", low=1)
    port = _read_number(environment, "MASTER_PORT", low=1, high=65535)
    return Place(
        rank=_read_number(environment, "RANK", high=world_size - 1),
        world_size=world_size,
        local_rank=_read_number(environment, "LOCAL_RANK", default="0"),
        local_size=_read_number(environment, "LOCAL_WORLD_SIZE", low=1, default="1"),
        master=f"{environment['MASTER_ADDR']}:{port}",
        given_by="the environment (RANK, WORLD_SIZE, …)",
    )


def _read_mpirun(environment: Mapping[str, str], names: Iterable[str]) -> Place:
    size, rank, local_size, local_rank = names
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]:
        raise FlagError(
            f"mpirun runs {environment[size]} processes ({size}) without {' and '.join(missing)}: "
            "give them the host of the first one and a free port, as with "
            "`mpirun -x MASTER_ADDR=host0 -x MASTER_PORT=29500`"
        )
    world_size = _read_number(environment, size)
    port = _read_number(environment, "MASTER_PORT", low=1, high=65535)
    return Place(
        rank=_read_number(environment, rank, high=world_size - 1),
        world_size=world_size,
        local_rank=_read_number(environment, local_rank),
        local_size=_read_number(environment, local_size, low=1),
        master=f"{environment['MASTER_ADDR']}:{port}",
        given_by="mpirun",
    )


def _read_slurm(environment: Mapping[str, str]) -> Place:
    names = ("STEP_TASKS_PER_NODE", "STEP_NODELIST", "JOB_ID", "PROCID", "LOCALID")
    needed = [f"SLURM_{name}" for name in names]
    _refuse_missing(environment, "SLURM_STEP_NUM_TASKS is", "srun", needed)
    per_machine = environment["SLURM_STEP_TASKS_PER_NODE"]  # 8(x2): eight on each of two
    if not (same := re.fullmatch(r"([1-9]\d*)(?:\(x\d+\))?", per_machine)):
        raise FlagError(
            f"srun runs {per_machine} tasks on the machines (SLURM_STEP_TASKS_PER_NODE); each must "
            "run the same number: give --ntasks-per-node"
        )
    # What this rank alone would find wrong, the others would wait for.
    tasks = environment.get("SLURM_GTIDS", "")  # those of this machine: 0,1,2
    numbers = [int(task) for task in tasks.split(",") if task.isdecimal()]
    if numbers and max(numbers) - min(numbers) >= len(numbers):
        raise FlagError(
            f"srun has put the tasks {tasks} onto one machine (SLURM_GTIDS); on each machine they "
            "must follow each other: give --distribution=block"
        )
    nodes = environment["SLURM_STEP_NODELIST"]
    try:
        host = expand_node_list(nodes)[0]
    except (IndexError, ValueError):
        raise FlagError(f"SLURM_STEP_NODELIST is {nodes!r}: expected hosts as n[1-2],m") from None
    # Below the ports that Linux hands out; two steps of a job may run side by side.
    job = _read_number(environment, "SLURM_JOB_ID")
    step = _read_number(environment, "SLURM_STEP_ID", default="0")
    own_port = str(16384 + (64 * job + step) % 16384)
    port = _read_number(environment, "MASTER_PORT", low=1, high=65535, default=own_port)
    world_size = _read_number(environment, "SLURM_STEP_NUM_TASKS")
    return Place(
        rank=_read_number(environment, "SLURM_PROCID", high=world_size - 1),
        world_size=world_size,
        local_rank=_read_number(environment, "SLURM_LOCALID"),
        local_size=int(same[1]),
        master=f"{environment.get('MASTER_ADDR') or host}:{port}",
        given_by="srun",
    )


def _refuse_missing(
    environment: Mapping[str, str], given: str, by: str, needed: Iterable[str]
) -> None:
    if missing := [name for name in needed if not environment.get(name)]:
        raise FlagError(
            f"{given} set, {', '.join(missing)} not: set all that {by} sets, or unset them all"
        )


def _read_number(
    environment: Mapping[str, str],
    name: str,
    low: int = 0,
    high: float = math.inf,
    default: str = "",
) -> int:
    text = environment.get(name, "").strip() or default
    if text.isdecimal() and low <= int(text) <= high:
        return int(text)
    bounds = f"{low} or more" if high == math.inf else f"{low} to {high}"
    raise FlagError(f"{name} is {text!r}: expected a whole number, {bounds}")
