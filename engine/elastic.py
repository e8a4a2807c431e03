"""The processes of one machine: torch's elastic launcher starts them, watches and restarts them."""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

from engine.hooks.stopping import REQUEUE_EXIT_CODE, STARTED_AT, process_age
from engine.mistakes import MISTAKES
from engine.parallel import comm
from engine.parallel.children import (
    LONGEST_SAVE,
    call_later,
    end_in_time,
    end_with_parent,
    exit_with,
    is_running,
    keep_end_to_itself,
    quiet_resource_tracker,
    send,
    spawned_pids,
    tell_of_leaving,
)
from engine.parallel.device import BACKENDS, find_accelerator, set_current_device
from engine.parallel.failures import FailureReports
from engine.parallel.heartbeat import Heartbeat
from engine.parallel.job import Exit, Job
from engine.parallel.joint_errors import is_echo
from engine.parallel.network import FlagError, find_interface
from engine.parallel.watch import MONITOR, Agent, LaunchError, Watch
from engine.utils.environment import usable_cpus
from engine.utils.late_compiler import import_compiler_late

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import LogsSpecs

LONG_WAIT = 15.0  # seconds for other machines, until that is told
LONGEST_SILENCE = timedelta(minutes=1)  # of a machine, until the others give it up
STOP_SIGNALS = [
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)
]

logger = logging.getLogger(__name__)


def run_processes(job: Job) -> list[Any]:
    """Start the processes of this machine; returns what each has returned."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousError

    reports: list[str] = []
    has_failed_to_stop = False

    def tell(report: str, has_raised: bool) -> None:
        nonlocal has_failed_to_stop
        if watch.has_killed and not has_raised:
            return  # it is this launcher that has ended the process
        reports.append(job.find_mistake() or report)
        has_failed_to_stop |= has_raised and job.stop_code == REQUEUE_EXIT_CODE
        if len(reports) <= job.max_restarts and job.stop_code is None:
            logger.warning("%s\nRestart %d of %d", reports[-1], len(reports), job.max_restarts)

    # Sooner than waiting for it fails: that would not say which machine it is.
    silence = min(job.timeout * 0.75, LONGEST_SILENCE).total_seconds()
    heartbeat = Heartbeat(job.host, job.port, job.machine_rank, job.flags, silence)
    meetings, strangers = 1 + job.max_restarts, spawned_pids()
    logs = DefaultLogsSpecs(job.folder)  # one: processes find in it what those before them noted
    with ExitStack() as stack:
        stack.enter_context(_environment(job))
        stack.enter_context(quiet_resource_tracker())
        stack.enter_context(_passed_on_signals(job))
        stack.enter_context(FailureReports(job, tell))
        if job.num_machines > 1:
            stack.enter_context(heartbeat)
        while True:
            meetings -= 1
            watch = Watch(job, _start_agent(job, logs, heartbeat), heartbeat, strangers)
            try:
                results = watch.wait()
                if has_failed_to_stop:  # those that were started again had nothing to do
                    raise LaunchError(reports[-1])
                return results
            except ChildFailedError as error:
                report = reports[-1] if reports else job.find_mistake() or str(error)
                if report.startswith("Rank "):
                    was_killed = "was killed by" in report.split("\n")[0]
                    report += job.describe_progress(int(report.split()[1]), was_killed)
                if job.stop_code is None or has_failed_to_stop:
                    raise LaunchError(report) from None
                if reports or not watch.has_killed:
                    logger.error("%s", report)
                return [Exit(job.stop_code)]
            except RendezvousError as error:
                is_lost = isinstance(error, RendezvousConnectionError) and job.machine_rank > 0
                if not (is_lost and meetings):
                    where = f"{job.host}:{job.port}"
                    what = f"{job.num_machines} machines do not meet at {where}"
                    if is_lost and job.have_met:
                        what = f"machine 0 at {where} is gone"
                    if job.machine_rank == 0 and isinstance(error, RendezvousConnectionError):
                        what += " (is there another machine 0, or another program at this port?)"
                    raise LaunchError(f"{what}: {type(error).__name__}: {error}") from error
                logger.warning("Machine 0 at %s is gone; waiting for it", job.host)
                reports.clear()  # a new agent counts from the beginning
                heartbeat.has_agreed.clear()  # it may come back with other flags
            finally:
                if job.are_done():  # others may still save
                    heartbeat.patience = LONGEST_SAVE


def _start_agent(job: Job, logs: "LogsSpecs", heartbeat: Heartbeat) -> Agent:
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    seconds = int(job.timeout.total_seconds())
    config = LaunchConfig(
        min_nodes=job.num_machines,
        max_nodes=job.num_machines,
        nproc_per_node=job.num_processes,
        run_id=str(uuid.uuid4()) if job.num_machines == 1 else f"engine at {job.port}",
        rdzv_backend="c10d",
        rdzv_endpoint=f"{job.host}:{job.port}",
        rdzv_configs={
            "is_host": job.machine_rank == 0,
            "join_timeout": seconds,
            "read_timeout": seconds,
        },
        max_restarts=job.max_restarts,
        monitor_interval=MONITOR,
        start_method="spawn",
        logs_specs=logs,
        local_addr=job.address,
    )
    agent: Agent = futures.Future()

    def run() -> None:
        try:
            # A machine with other flags would have those that have met start anew.
            if job.machine_rank > 0 and not heartbeat.has_agreed.wait(seconds):
                raise RendezvousConnectionError("nobody is there")
            agent.set_result(elastic_launch(config, _run_process)(job))
        except dist.DistNetworkError as error:  # machine 0 has gone just when all had come
            agent.set_exception(RendezvousConnectionError(str(error)))
        except BaseException as error:
            agent.set_exception(error)

    # In the main thread it would handle signals: end the processes, and forget their exit codes.
    # A daemon, for one that waits on a dead link cannot be ended.
    threading.Thread(target=run, name="elastic agent", daemon=True).start()
    if job.num_machines > 1:
        call_later(LONG_WAIT, _tell_of_waiting, job, agent)
    return agent


def _tell_of_waiting(job: Job, agent: Agent) -> None:
    is_over = agent.done() or not os.path.isdir(job.folder)
    if not (is_over or any(map(is_running, job.pids().values()))):
        where = f"{job.host}:{job.port}"
        logger.warning("Waiting for all %d machines to come to %s", job.num_machines, where)


def _run_process(job: Job) -> Any:
    """One process of the run."""
    if job.stop_code is not None:
        return Exit(job.stop_code)
    import_compiler_late()
    multiprocessing.set_start_method(job.start_method, force=True)  # torch's is "spawn" here
    # Data workers that are killed leave what they had there.
    multiprocessing.current_process()._config["tempdir"] = job.folder  # type: ignore[attr-defined]
    local_rank = int(os.environ["LOCAL_RANK"])
    result: Any = None
    try:
        _count_starts(job, local_rank)
        job.begin(local_rank)
        keep_end_to_itself()
        tell_of_leaving(job.left(local_rank))
        end_with_parent()
        # On Linux torch has SIGINT sent when the launcher is killed, as if to stop the whole run.
        _prctl_pr_set_pdeathsig(signal.SIGKILL)
        _handle_signals(_exit)
        _join_group(job)
        job.joined(local_rank).touch()
        result = job.main_func(*job.args)
    except SystemExit as end:
        if end.code == REQUEUE_EXIT_CODE:
            job.stop_with(REQUEUE_EXIT_CODE)
            result = Exit(REQUEUE_EXIT_CODE)
        elif job.stop_code is not None:
            # Others may wait for this rank in a collective, and do so for as long as it lives.
            sys.stdout.flush()
            os._exit(job.stop_code)
        elif end.code:
            _handle_signals(signal.SIG_DFL)
            end_in_time()
            exit_with(end.code)
    except BaseException as error:
        with suppress(AttributeError):  # on Windows
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's raises when a data worker dies
        end_in_time()
        job.note_failure(local_rank, error, is_mistake=isinstance(error, MISTAKES))
        _handle_signals(signal.SIG_DFL)  # the agent sends one: no error of its own shall come of it
        # Often the echo of another's error or death, which is to be found first. Of flags that
        # contradict each other, all machines are to be told.
        time.sleep((10 if is_echo(error) or isinstance(error, FlagError) else 3) * MONITOR)
        exit_with(1)
    job.returned(local_rank).touch()
    comm.leave_groups()
    # What the first process returns is all that `launch` gives on.
    return _sendable(result) if local_rank == 0 or isinstance(result, Exit) else None


def _sendable(result: Any) -> Any:
    """What a function returned; None where it cannot be sent to the launcher, as a trainer."""
    try:
        ForkingPickler.dumps(result)
    except Exception as error:
        logger.warning(
            "What the function returned (%s) cannot be sent to the launcher; that returns None: %r",
            type(result).__name__,
            error,
        )
        return None
    return result


def _handle_signals(handler: Any) -> None:
    for number in STOP_SIGNALS:
        # What is ignored stays so: as the program was started, or as it is to end.
        if signal.getsignal(number) not in (signal.SIG_IGN, _ignore):
            signal.signal(number, handler)


def _exit(number: int, _: Any) -> None:
    _handle_signals(_ignore)
    sys.exit(128 + number)


def _ignore(number: int, _: Any) -> None:
    """For SIG_IGN, of which Python prints a traceback where another signal is under way."""


def _count_starts(job: Job, local_rank: int) -> None:
    """Have every start but the first count: torch leaves out those for a machine that came back."""
    if job.started(local_rank).exists():
        count = max(1, int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(count)


def _join_group(job: Job) -> None:
    local_rank = int(os.environ["LOCAL_RANK"])
    # torch numbers machines in the order of their addresses; we as the user has.
    rank = job.machine_rank * job.num_processes + local_rank
    world_size = job.num_machines * job.num_processes
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world_size,
        is_master=os.environ["RANK"] == "0",
        timeout=job.timeout,
    )
    job.meet_others(store, rank)
    os.environ["RANK"] = str(rank)
    comm.timeout = job.timeout
    backend = BACKENDS[set_current_device(local_rank)]
    comm.enter_world(backend, store=store, rank=rank, world_size=world_size)
    comm.create_local_process_group(job.num_processes)
    comm.synchronize()


@contextmanager
def _passed_on_signals(job: Job) -> Iterator[None]:
    """Meanwhile a signal to stop goes to the processes, and a second one kills them, or ends the
    wait for other machines."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    is_asked = False

    def pass_on(number: int, _: Any) -> None:
        nonlocal is_asked
        again, is_asked = is_asked, True
        if job.stop_code is None:
            # Those that have not begun to train have nothing to save, but those before them had.
            job.stop_with(REQUEUE_EXIT_CODE if job.was_interrupted() else 128 + number)
        elif again and not any(map(is_running, job.pids().values())):
            sys.exit(job.stop_code)
        # Ctrl-C and Slurm reach the processes too: what they get twice would end them at once.
        other = signal.SIGTERM if number == STOP_SIGNALS[-1] else STOP_SIGNALS[-1]
        text = "killing the processes" if again else f"{other.name} to the processes"
        with suppress(OSError):
            os.write(2, f"{signal.Signals(number).name}: {text}\n".encode())
        # Those that have not begun will see that they are to stop.
        send(signal.SIGKILL if again else other, job.pids().values())

    before = {
        number: signal.signal(number, pass_on)
        for number in STOP_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _environment(job: Job) -> Iterator[None]:
    """Meanwhile the variables that the processes need are set; what the user has set stays."""
    # Processes that share the store of the agents hang in 2 of 5 restarts (pytorch #135712).
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    # Else agents number their processes by messages, and wait half an hour for one that has died.
    variables["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"
    variables[STARTED_AT] = str(time.monotonic() - process_age())  # for time limits
    if find_accelerator() is None:
        variables["OMP_NUM_THREADS"] = str(max(1, usable_cpus() // job.num_processes))
    if job.num_machines > 1 and (interface := find_interface(job.address)):
        variables["GLOO_SOCKET_IFNAME"] = interface  # gloo would take that of the host's name
    variables = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
