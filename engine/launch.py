"""launch(): one function on many processes, as a command line, torchrun or srun asks for it."""

import atexit
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing import process
from multiprocessing.reduction import ForkingPickler
from tempfile import TemporaryDirectory
from typing import Any

import torch.distributed as dist

from engine.elastic import run_processes
from engine.hooks.stopping import REQUEUE_EXIT_CODE
from engine.parallel import comm
from engine.parallel.children import (
    LONGEST_SAVE,
    PATIENCE,
    call_later,
    end_in_time,
    end_with_parent,
)
from engine.parallel.cluster import Place, find_place
from engine.parallel.device import BACKENDS, check_count, set_current_device
from engine.parallel.job import Exit, Job
from engine.parallel.network import FlagError, find_interface, find_local_address, split_endpoint
from engine.parallel.watch import LaunchError
from engine.utils.late_compiler import import_compiler_late

__all__ = ["DEFAULT_TIMEOUT", "LaunchError", "launch", "may_restart", "was_restarted"]

DEFAULT_TIMEOUT = timedelta(minutes=30)

_launches = itertools.count(1)  # of this process, under torchrun or srun


def launch(
    main_func: Callable[..., Any],
    num_gpus_per_machine: int,
    num_machines: int = 1,
    machine_rank: int = 0,
    dist_url: str | None = None,
    args: tuple = (),
    timeout: timedelta | float = DEFAULT_TIMEOUT,
    max_restarts: int = 0,
) -> Any:
    """Call `main_func(*args)` in `num_gpus_per_machine` processes on each machine.

    Without accelerators the processes compute on the CPU. Returns what rank 0 of this machine
    returned. One process on one machine is this one, and so it is with 0 accelerators. A process
    that torchrun, srun, mpirun or Kubernetes has started takes the place that it was given.

    `dist_url` is `host:port` of machine 0. When a process dies, all end (LaunchError), or are
    started again up to `max_restarts` times: see `was_restarted`. `timeout` (a number is
    seconds) bounds every wait of one process for another. Signals to stop are passed on to the
    processes, and an exit code that they end with on request (75: start me again) is the one of
    this program.
    """
    import_compiler_late()
    if not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    if place := find_place(os.environ):
        flags = {
            "--num-machines": (num_machines, 1, place.num_machines),
            "--machine-rank": (machine_rank, 0, place.machine_rank),
            "--dist-url": ((dist_url or "auto").removeprefix("tcp://"), "auto", place.master),
        }
        # A task of srun that has a machine to itself may start the processes there.
        is_launcher = place.given_by == "srun" and place.local_size == 1
        if not (is_launcher and (num_gpus_per_machine > 1 or max_restarts)):
            flags["--num-gpus"] = (num_gpus_per_machine, 1, place.local_size)
            flags["--max-restarts"] = (max_restarts, 0, 0)
            _refuse_contradictions(place, flags)
            return _call_at(place, main_func, args, timeout)
        _refuse_contradictions(place, flags)
        num_machines, machine_rank, dist_url = place.num_machines, place.rank, place.master
    _refuse_impossible(num_gpus_per_machine, num_machines, machine_rank, max_restarts)
    if max(1, num_gpus_per_machine) * num_machines == 1 and not max_restarts:
        return main_func(*args)
    _refuse_without_file(main_func)
    check_count(num_gpus_per_machine)
    host, port, address = _find_machine_0(num_machines, machine_rank, dist_url)
    with TemporaryDirectory(prefix="engine_") as folder:
        job = Job(
            main_func=main_func,
            args=args,
            num_processes=max(1, num_gpus_per_machine),
            num_machines=num_machines,
            machine_rank=machine_rank,
            host=host,
            port=port,
            address=address,
            timeout=timeout,
            max_restarts=max_restarts,
            folder=folder,
        )
        return _run(job)


def may_restart() -> bool:
    """Whether our launcher, or torchrun, starts this run again after the death of a process."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) > 0


def was_restarted() -> bool:
    """Whether the launcher has started this run again, so that it should resume. Ask on all ranks.

    Some ranks may be new, because their machine is: if any was restarted, all of them were.
    """
    return any(comm.all_gather(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0))


def _run(job: Job) -> Any:
    """What the first process of a job returns."""
    try:
        results = run_processes(job)
    except Exception as error:
        _name_unsendable((job.main_func, *job.args), error)
        raise
    if stopped := next((end for end in results if isinstance(end, Exit)), None):
        if stopped.code == REQUEUE_EXIT_CODE:
            _ignore_sigterm_at_exit()
        sys.exit(stopped.code)
    return results[0]


def _find_machine_0(
    num_machines: int, machine_rank: int, dist_url: str | None
) -> tuple[str, int, str]:
    """Host and port of machine 0, and the address at which it can reach this machine."""
    if num_machines == 1:
        return "localhost", 0, "localhost"
    if dist_url is None or dist_url == "auto":
        raise FlagError("--dist-url host:port of machine 0 is needed with --num-machines > 1")
    host, port = split_endpoint(dist_url)
    return host, port, find_local_address(host, port)


def _call_at(place: Place, main_func: Callable[..., Any], args: tuple, timeout: timedelta) -> Any:
    from torch.distributed.elastic.multiprocessing.errors import record

    if dist.is_initialized():
        raise FlagError(
            "this process is one of several already (is launch called in a function that launch "
            "has started?): call the function itself"
        )
    os.environ.update(place.environment())
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()  # torchrun, when it is killed, leaves its processes to themselves
    if place.num_machines > 1:
        address = find_local_address(*split_endpoint(place.master))
        if interface := find_interface(address):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    comm.timeout = timeout
    backend = BACKENDS[set_current_device(place.local_rank)]
    world = _find_world(place, timeout)
    comm.enter_world(backend, **world)
    comm.create_local_process_group(place.local_size)
    comm.synchronize()
    atexit.register(end_in_time)  # now: it is called after those of the function's own
    try:
        result = record(main_func)(*args)  # torchrun's summary then has the traceback
    except BaseException as error:
        # A thread of the user's own may keep this process: the others need not wait for it.
        call_later(PATIENCE, _leave, dist.group.WORLD)
        if isinstance(error, SystemExit) and error.code == REQUEUE_EXIT_CODE:  # no failure
            atexit.unregister(end_in_time)
            _ignore_sigterm_at_exit()
            _come_to_end(world["store"], wait_for=place.world_size)
        raise
    atexit.unregister(end_in_time)
    _come_to_end(world["store"])
    comm.leave_groups()
    return result


def _find_world(place: Place, timeout: timedelta) -> dict[str, Any]:
    """Arguments of `init_process_group`. Who keeps the store keeps its port from another launch."""
    from torch.distributed.rendezvous import rendezvous

    store, rank, world_size = next(rendezvous("env://", timeout=timeout))
    store.set_timeout(timeout)
    # torchrun with --master-port keeps one store for all that comes: not what was there before.
    # The restarts of several machines may be counted differently.
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if place.num_machines == 1 else "0"
    store = dist.PrefixStore(f"launch {next(_launches)} restart {restart}", store)
    return {"store": store, "rank": rank, "world_size": world_size}


def _come_to_end(store: dist.Store, wait_for: int = 0) -> None:
    """Tell that this rank has nothing more to save; and wait for so many that have told it.

    torchrun and srun end the others as soon as one has ended with 75.
    """
    deadline = time.monotonic() + LONGEST_SAVE
    with suppress(RuntimeError):  # who keeps the store is gone
        count = store.add("at the end", 1)
        while count < wait_for and time.monotonic() < deadline:
            time.sleep(0.1)
            count = store.add("at the end", 0)


def _ignore_sigterm_at_exit() -> None:
    """srun --kill-on-bad-exit sends one when the first task has ended with 75: as all are to do."""
    atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)


def _leave(world: dist.ProcessGroup | None) -> None:
    if dist.group.WORLD is world:  # the program may have gone on, with another
        comm.leave_groups()


def _refuse_impossible(
    num_gpus: int, num_machines: int, machine_rank: int, max_restarts: int
) -> None:
    if max_restarts < 0:
        raise FlagError(f"--max-restarts {max_restarts}: expected 0 or more")
    if num_gpus < 0 or num_machines < 1:
        raise FlagError(
            f"--num-gpus {num_gpus} --num-machines {num_machines}: expected 0 or more, 1 or more"
        )
    if not 0 <= machine_rank < num_machines:
        raise FlagError(
            f"--machine-rank {machine_rank}: {num_machines} machine(s) have the numbers 0 to "
            f"{num_machines - 1}"
        )


def _refuse_without_file(main_func: Callable[..., Any]) -> None:
    """New processes import the function: that of a notebook, `python -c`, stdin or a package's
    `__main__.py` is not there."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None) or ""  # of stdin it is "<stdin>"
    file = os.path.join(getattr(process, "ORIGINAL_DIR", None) or "", file)  # as a new process does
    where = "" if os.path.isfile(file) else "no file, as in a notebook or python -c"
    spec = getattr(main, "__spec__", None)
    if getattr(spec, "name", "").rpartition(".")[2] == "__main__":
        where = "a __main__.py"
    if where and getattr(main_func, "__module__", "") == "__main__":
        name = getattr(main_func, "__qualname__", repr(main_func))
        raise FlagError(
            f"new processes cannot import {name}, which is in {where}: put it into a .py file "
            "of its own and import it"
        )
    if os.path.basename(file) == "<stdin>":
        raise FlagError("new processes cannot import a program from stdin: put it into a .py file")


def _name_unsendable(things: tuple, error: Exception) -> None:
    """Say which of them it is, where processes were not started because it does not pickle."""
    for thing in things:
        try:
            ForkingPickler.dumps(thing)
        except Exception as found:
            if str(found) == str(error):
                raise FlagError(
                    f"{thing!r:.80} cannot be sent to new processes: {error}; launch takes "
                    "a function that is defined at the top of a .py file, and args that pickle"
                ) from error


def _refuse_contradictions(place: Place, flags: dict[str, tuple[Any, Any, Any]]) -> None:
    """Flags are as they are by default, or say what torchrun or srun says."""
    for flag, (given, default, expected) in flags.items():
        if given not in (default, expected):
            raise FlagError(
                f"{flag} {given} contradicts {place.given_by}: there it is {expected}; leave the "
                "flag away, or start without torchrun and srun"
            )
