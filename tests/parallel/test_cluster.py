import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.cluster import expand_node_list, find_place
from engine.parallel.network import FlagError

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_NTASKS": "6",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "3(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
MPICH = {"PMI_SIZE": "8", "PMI_RANK": "5", "MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "1"}


def test_a_process_that_was_just_started_has_no_place():
    assert find_place({}) is None
    assert find_place({"PATH": "/bin", "OMP_NUM_THREADS": "1"}) is None
    assert find_place({**TORCHRUN, "RANK": "", "WORLD_SIZE": ""}) is None  # as YAML leaves them


def test_white_space_and_empty_variables_do_not_count():
    padded = {name: f" {value}\n" for name, value in TORCHRUN.items() if name != "MASTER_ADDR"}
    assert find_place({**TORCHRUN, **padded}) == find_place(TORCHRUN)
    assert find_place({**SRUN, "MASTER_ADDR": "", "MASTER_PORT": ""}) == find_place(SRUN)


def test_torchrun_says_it_all():
    place = find_place(TORCHRUN)
    assert (place.rank, place.world_size, place.local_rank, place.local_size) == (5, 8, 1, 4)
    assert (place.machine_rank, place.num_machines, place.master) == (1, 2, "node1:29500")
    assert place.environment() == TORCHRUN


@pytest.mark.parametrize("names", [OPEN_MPI, MPICH], ids=["Open MPI", "MPICH"])
def test_mpirun_says_all_but_where_to_meet(names):
    where = {name: TORCHRUN[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
    place = find_place({**SRUN, **names, **where})  # Slurm may have started mpirun
    assert place.environment() == TORCHRUN
    with pytest.raises(FlagError, match=r"mpirun runs 8 processes .* without MASTER_ADDR and MA"):
        find_place(names)
    with pytest.raises(FlagError, match="without MASTER_PORT: give them"):
        find_place({**names, "MASTER_ADDR": "node1"})
    assert find_place({**names, next(iter(names)): "1"}) is None


def test_a_pod_of_kubernetes_is_a_machine_with_one_process():
    pod = {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
    place = find_place(pod)
    assert (place.machine_rank, place.num_machines) == (2, 3)
    assert place.environment() == {**pod, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def test_the_only_pod_of_a_job_is_a_machine_like_any_other():
    pod = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "23456"}
    assert find_place(pod) is None


def test_a_half_described_place_is_refused():
    with pytest.raises(ValueError, match="MASTER_PORT not: set all that torchrun sets"):
        find_place({name: TORCHRUN[name] for name in TORCHRUN if name != "MASTER_PORT"})


@pytest.mark.parametrize(
    "name", ["STEP_TASKS_PER_NODE", "STEP_NODELIST", "JOB_ID", "PROCID", "LOCALID"]
)
def test_a_half_described_task_of_srun_is_refused(name):
    missing = f"SLURM_{name}"
    with pytest.raises(FlagError, match=f"{missing} not: set all that srun sets, or unset them"):
        find_place({key: SRUN[key] for key in SRUN if key != missing})


@pytest.mark.parametrize(
    ("environment", "name", "value", "expected"),
    [
        (TORCHRUN, "RANK", "a", "0 to 7"),
        (TORCHRUN, "RANK", "8", "0 to 7"),
        (TORCHRUN, "RANK", "-1", "0 to 7"),
        (TORCHRUN, "WORLD_SIZE", "0", "1 or more"),
        (TORCHRUN, "LOCAL_RANK", "1.5", "0 or more"),
        (TORCHRUN, "LOCAL_WORLD_SIZE", "0", "1 or more"),
        (TORCHRUN, "MASTER_PORT", "99999", "1 to 65535"),
        (SRUN, "MASTER_PORT", "http", "1 to 65535"),
        (SRUN, "SLURM_STEP_NUM_TASKS", "two", "0 or more"),
        (SRUN, "SLURM_PROCID", "6", "0 to 5"),
        (SRUN, "SLURM_LOCALID", "x", "0 or more"),
        (SRUN, "SLURM_JOB_ID", "x", "0 or more"),
        (SRUN, "SLURM_STEP_ID", "x", "0 or more"),
    ],
)
def test_a_variable_that_is_no_number_or_out_of_range_is_named(environment, name, value, expected):
    message = f"^{name} is '{value}': expected a whole number, {expected}$"
    with pytest.raises(FlagError, match=message):
        find_place({**environment, name: value})


@pytest.mark.parametrize("nodes", [",", "n[a-b]", "n[5-3]"])
def test_a_list_of_nodes_without_a_host_is_named(nodes):
    with pytest.raises(FlagError, match=r"^SLURM_STEP_NODELIST is '.*': expected hosts"):
        find_place({**SRUN, "SLURM_STEP_NODELIST": nodes})


def test_tasks_of_srun_find_their_place():
    place = find_place(SRUN)
    assert (place.rank, place.world_size, place.local_rank, place.local_size) == (4, 6, 1, 3)
    assert (place.machine_rank, place.num_machines) == (1, 2)
    assert place.environment()["MASTER_ADDR"] == "gpu07"


def test_torchrun_in_a_task_of_srun_goes_first():
    assert find_place({**SRUN, **TORCHRUN}) == find_place(TORCHRUN)


def test_steps_meet_at_ports_of_their_own_below_those_that_linux_hands_out():
    def port(**other: str) -> int:
        return int(find_place({**SRUN, **other}).environment()["MASTER_PORT"])

    ports = [port(SLURM_JOB_ID=str(job), SLURM_STEP_ID=step) for job in range(99) for step in "01"]
    assert len(set(ports)) == len(ports)
    assert all(1024 < number < 32768 for number in ports)
    assert port(MASTER_PORT="999") == 999


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1"},  # in a batch script
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_without_several_tasks_of_srun_it_is_a_bare_machine(environment):
    assert find_place(environment) is None


@pytest.mark.parametrize("tasks", ["3,3", "4,2", "2(x2),1", "0", "x"])
def test_machines_with_different_numbers_of_tasks_are_refused(tasks):
    with pytest.raises(ValueError, match="each must run the same number: give --ntasks-per-node"):
        find_place({**SRUN, "SLURM_STEP_TASKS_PER_NODE": tasks})


def test_ranks_that_do_not_follow_each_other_on_a_machine_are_refused():
    with pytest.raises(ValueError, match="with ranks that follow each other"):
        find_place({**SRUN, "SLURM_LOCALID": "2"})  # srun --distribution=cyclic


def test_all_ranks_refuse_tasks_that_do_not_follow_each_other_on_a_machine():
    """Two of these four are where they would be anyway, and must not wait for the others."""
    two_each = {**SRUN, "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    for rank, (place, tasks) in enumerate([("0", "0,2"), ("0", "1,3"), ("1", "0,2"), ("1", "1,3")]):
        own = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": place, "SLURM_GTIDS": tasks}
        with pytest.raises(FlagError, match=f"put the tasks {tasks} onto one .* give --distrib"):
            find_place({**two_each, **own})
    assert find_place({**SRUN, "SLURM_GTIDS": "3,4,5"}) == find_place(SRUN)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[01-03,07],gpu5", ["node01", "node02", "node03", "node07", "gpu5"]),
        ("a[9-11]", ["a9", "a10", "a11"]),
        ("r[1-2]n[1,3]-ib", ["r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib"]),
        ("x,y.example,z-1", ["x", "y.example", "z-1"]),
    ],
)
def test_node_lists_of_slurm_are_written_out(text, hosts):
    assert expand_node_list(text) == hosts


@given(st.integers(0, 500), st.integers(1, 30), st.integers(1, 4))
def test_a_range_of_hosts_keeps_its_leading_zeros(first, count, width):
    numbers = [str(number).zfill(width) for number in range(first, first + count)]
    assert expand_node_list(f"n[{numbers[0]}-{numbers[-1]}]x") == [f"n{n}x" for n in numbers]


def test_variables_of_one_process_do_not_hide_srun():
    stale = {"RANK": "0", "WORLD_SIZE": "1"}
    assert find_place({**SRUN, **stale}) == find_place(SRUN)
