"""The processes of a machine. This file is also the program that launches them: see `start`."""

import atexit
import ctypes
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent

from engine import TrainerBase, hooks, launch
from engine.config import ConfigError
from engine.hooks.stopping import REQUEUE_EXIT_CODE
from engine.launch import was_restarted
from engine.parallel import comm
from engine.parallel.joint_flags import JointFlags

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def die_once() -> dict:
    """The last rank is killed when it runs for the first time."""
    restarted = was_restarted()
    if not restarted and comm.get_rank() == comm.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.synchronize()
    return {
        "restarted": comm.all_gather(restarted),
        "ranks": comm.all_gather(int(os.environ["RANK"])),
        "threads": os.environ["OMP_NUM_THREADS"],
    }


def fail_on_one_rank() -> None:
    """Rank 1 fails, and rank 0 when it hears no more of it."""
    if comm.get_rank() == 1:
        raise ZeroDivisionError("the error of rank 1")
    comm.synchronize()


def kill_a_data_worker() -> None:
    """As lack of memory does, when it has sent a tensor and before it has been asked to end."""
    batches = iter(torch.utils.data.DataLoader(list(torch.zeros(99, 1)), num_workers=1))
    next(batches)
    batches._workers[0].kill()
    list(batches)


class Untold(Exception):
    def __str__(self) -> str:
        return self.message  # which is never set


def fail_without_a_message() -> None:
    """Rank 1 fails, and takes so long to end that rank 0 fails for it."""
    if comm.get_rank() == 1:
        atexit.register(time.sleep, 3)
        atexit.register(comm.leave_groups)
        raise Untold
    comm.synchronize()


def return_on_one_rank() -> None:
    """Rank 1 is done, and rank 0 waits for it."""
    if comm.get_rank() == 0:
        comm.synchronize()


def return_in_training() -> None:
    """As above, in the middle of training: torch would keep the connections open."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    for _ in range(3 - comm.get_rank()):
        model(torch.ones(1, 2)).sum().backward()


def fail_beside_a_collective() -> None:
    """Rank 1 fails, and takes part in something that rank 0 never comes to."""
    comm.flag_group(dist.group.WORLD)
    if comm.get_rank() == 1:
        JointFlags().ask(True)
        raise ZeroDivisionError("the error of rank 1")
    comm.synchronize()


def return_beside_a_collective() -> None:
    with suppress(ZeroDivisionError):
        fail_beside_a_collective()


def fail_beside_a_thread() -> None:
    """Rank 1 fails, and has a thread that does not end."""
    if comm.get_rank() == 1:
        threading.Thread(target=time.sleep, args=(1000,)).start()
        raise ZeroDivisionError("the error of rank 1")
    comm.synchronize()


def leave_silently() -> None:
    """Rank 1 ends as if all was well, and rank 0 returns."""
    if comm.get_rank() == 1:
        os._exit(0)


def leave_once() -> str:
    """Rank 1 ends as if all was well, the first time."""
    if not was_restarted() and comm.get_rank() == 1:
        os._exit(0)
    comm.synchronize()
    return "done"


def die_beside_children() -> None:
    """Rank 1 dies, and on both ranks there are processes that outlive it."""
    os.system("sleep 60 > /dev/null 2>&1 &")
    if os.fork() == 0:
        os.closerange(0, 3)  # the test reads to their end
        time.sleep(60)
        os._exit(0)
    comm.synchronize()
    if comm.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)


def return_beside_a_child() -> str:
    os.system("sleep 60 > /dev/null 2>&1 &")
    return "done"


def get_two_signals() -> None:
    """At one moment, as where a launcher and `timeout` each send one."""
    numbers = [signal.SIGUSR1, signal.SIGTERM]
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def run_out_of_files_beside_a_thread() -> None:
    """Rank 1 fails and can open nothing, not even to tell of it."""
    if comm.get_rank() == 1:
        threading.Thread(target=time.sleep, args=(1000,)).start()
        while True:
            os.dup(0)
    comm.synchronize()


def interrupt_beside_a_thread() -> None:
    if comm.get_rank() == 1:
        threading.Thread(target=time.sleep, args=(1000,)).start()
        raise KeyboardInterrupt
    comm.synchronize()


def return_beside_a_stubborn_thread() -> None:
    """Minds no signal when all is done but for a thread that does not end."""
    threading.Thread(target=time.sleep, args=(1000,)).start()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    os.write(1, b"called\n")


def save_long_after_the_others_have_gone() -> None:
    """Rank 0 alone saves, as under DDP, and takes its time."""
    if comm.get_rank() == 0:
        time.sleep(8)
        os.write(1, b"saved\n")
    sys.exit(REQUEUE_EXIT_CODE)


def save_on_one_machine(last: int) -> None:
    """The others are done at once."""
    os.write(1, b"called\n")
    if comm.get_rank() == last:
        time.sleep(20)
        os.write(1, b"saved\n")
    sys.exit(REQUEUE_EXIT_CODE)


def stop_on_rank_0_alone() -> None:
    if comm.get_rank() == 0:
        sys.exit(REQUEUE_EXIT_CODE)


def start_a_stranger_that_fails() -> None:
    """In the launcher, beside the ranks."""
    while len(multiprocessing.process._children) < 2:
        time.sleep(0.01)
    multiprocessing.get_context("spawn").Process(target=sys.exit, args=(1,)).start()


def return_late() -> str:
    time.sleep(8)
    return "done"


def leave_in_native_code() -> None:
    """As above, without Python, while rank 0 goes on."""
    if comm.get_rank() == 1:
        ctypes.CDLL(None)._exit(0)
    time.sleep(1000)


def exit_early(code: int) -> None:
    os.write(1, b"called\n")  # in one piece
    sys.exit(code)


def wait_for_signal(is_stubborn: bool) -> None:
    """Minds no signal at all, or leaves it to the launcher what they do."""
    if is_stubborn:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
    comm.synchronize()
    os.write(1, b"called\n")  # in one piece
    while True:
        time.sleep(0.1)


def talk() -> None:
    """Is in a collective nearly all the time."""
    os.write(1, b"called\n")
    while True:
        comm.all_gather(1)


class Steps(TrainerBase):
    def run_step(self) -> None:
        self.storage.put_scalar("x", 1.0)


def stay() -> None:
    print("called", flush=True)
    time.sleep(25)


def meet_for_ever() -> None:
    print("called", flush=True)
    while True:
        comm.synchronize()


def meet_once() -> str:
    comm.synchronize()
    return "all are here"


def die_when_the_other_is_done() -> None:
    if comm.is_main_process():
        time.sleep(8)
        os.kill(os.getpid(), signal.SIGKILL)


def die_at_the_end_of_a_run() -> str:
    """Once, on rank 0, as in its last save: the others have nothing more to do."""
    is_first = not was_restarted()

    def after_train(trainer: TrainerBase) -> None:
        if is_first and comm.is_main_process():
            time.sleep(3)
            os.kill(os.getpid(), signal.SIGKILL)

    trainer = Steps()
    trainer.register_hooks([hooks.CallbackHook(after_train=after_train)])
    trainer.train(0, 3)
    return "at first" if is_first else "restarted"


def stop_with_a_slow_rank_0() -> None:
    """Rank 0 takes what others have sent when they have long come to the end of the program."""

    def before_train(trainer: TrainerBase) -> None:
        if comm.is_main_process():
            trainer.storage.on_sync(lambda: time.sleep(0.5))

    def after_step(trainer: TrainerBase) -> None:
        if trainer.iter == 25:
            trainer.stop("to be continued", requeue=True)

    def after_train(trainer: TrainerBase) -> None:
        if comm.is_main_process():
            print("saved")

    callbacks = hooks.CallbackHook(
        before_train=before_train, after_step=after_step, after_train=after_train
    )
    trainer = Steps()
    trainer.register_hooks([hooks.PeriodicWriter([], over_ranks=True), callbacks])
    trainer.train(0, 100)
    sys.exit(75)


def fail_to_stop() -> None:
    """Rank 1 takes the run for saved."""
    if comm.get_rank() == 1:
        sys.exit(75)
    time.sleep(1)
    raise ZeroDivisionError("the run is not saved")


def fail_in_two_ways() -> None:
    if not was_restarted() and comm.get_rank() == 1:
        raise ConfigError("a mistake of the first attempt")
    if was_restarted() and comm.get_rank() == 0:
        raise RuntimeError("the error of the second attempt")
    comm.synchronize()


def start(name: str, *launcher: str, **environment: str) -> subprocess.Popen[str]:
    kept = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    return subprocess.Popen(
        [sys.executable, *launcher, __file__, name],
        env={**kept, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where pytest runs in the background, SIGINT is ignored, and children inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def wait_for_calls(process: subprocess.Popen[str], count: int) -> None:
    """Until the function runs in so many processes."""
    output = ""
    while output.count("called") < count:
        output += process.stdout.read(1) or pytest.fail(process.stderr.read())


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory):
    """What came of a run in which a process was killed, and the folder for its temporary files."""
    folder = tmp_path_factory.mktemp("temporary")
    process = start("die_once", TMPDIR=str(folder))
    output, errors = process.communicate(timeout=110)
    assert process.returncode == 0, errors
    return json.loads(output), errors, folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "end"),
    [
        ("return_on_one_rank", "Before that, rank 1 had come to the end of the program"),
        ("return_in_training", "Before that, rank 1 had come to the end of the program"),
        ("return_beside_a_collective", "Before that, rank 1 had come to the end of the program"),
        ("fail_without_a_message", "Untold: <exception str() failed>"),
        ("fail_beside_a_collective", "ZeroDivisionError: the error of rank 1"),
        ("fail_beside_a_thread", "ZeroDivisionError: the error of rank 1"),
        ("run_out_of_files_beside_a_thread", "LaunchError: Rank 1 ended with exit code 1"),
        ("interrupt_beside_a_thread", "in interrupt_beside_a_thread\n    raise KeyboardInterrupt"),
        ("die_beside_children", "Rank 1 was killed by SIGKILL"),
    ],
)
def test_no_rank_is_left_waiting_for_one_that_is_gone(program, end):
    process = start(program)
    _, errors = process.communicate(timeout=110)
    assert process.returncode == 1
    assert end in errors


def test_after_a_death_all_ranks_start_again_and_know_it(killed_once):
    result, _, _ = killed_once
    assert result["restarted"] == [True, True]
    assert result["ranks"] == [0, 1]


def test_a_restart_says_why_in_two_lines(killed_once):
    _, errors, _ = killed_once
    death, restart = [line for line in errors.splitlines() if "ank " in line or "Restart" in line]
    assert death.startswith("Rank 1 was killed by SIGKILL")
    assert restart == "Restart 1 of 1"
    assert "torch/" not in errors


def test_processes_share_the_cores(killed_once):
    result, _, _ = killed_once
    assert int(result["threads"]) == max(1, len(os.sched_getaffinity(0)) // 2)


def test_no_temporary_files_are_left(killed_once):
    _, _, folder = killed_once
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("program", ["fail_on_one_rank", "kill_a_data_worker"])
def test_no_temporary_files_are_left_after_an_error(tmp_path, program):
    process = start(program, TMPDIR=str(tmp_path))
    process.communicate(timeout=110)
    assert process.returncode == 1
    left = [path.name for path in tmp_path.iterdir()]
    # Python's own are of a process that was killed while it imported.
    assert [name for name in left if not name.startswith("tmp")] == []


@pytest.mark.slow
def test_the_error_shown_is_the_first_one_and_it_is_shown_once():
    process = start("fail_on_one_rank")
    _, errors = process.communicate(timeout=110)
    assert process.returncode == 1
    assert "LaunchError: Rank 1 failed with exit code 1:\nTraceback" in errors
    assert errors.count("ZeroDivisionError: the error of rank 1") == 1
    assert "onnection" not in errors
    assert len(errors.splitlines()) < 25


@pytest.mark.slow
@pytest.mark.parametrize("program", ["leave_silently", "leave_in_native_code"])
def test_a_rank_that_ends_without_a_word_is_named(program):
    process = start(program)
    _, errors = process.communicate(timeout=110)
    assert process.returncode == 1
    assert "Rank 1 ended with exit code 0 in the middle of its program" in errors


@pytest.mark.slow
@pytest.mark.parametrize("beside", ["a_collective", "a_thread"])
def test_under_torchrun_no_rank_is_left_waiting_for_one_that_has_failed(beside):
    process = start(f"fail_beside_{beside}", *TORCHRUN)
    _, errors = process.communicate(timeout=110)
    assert process.returncode == 1
    assert "ZeroDivisionError: the error of rank 1" in errors


@pytest.mark.slow
def test_two_signals_at_once_are_no_error():
    process = start("get_two_signals")
    _, errors = process.communicate(timeout=110)
    assert re.search("ended with exit code (138|143)", errors)  # it may get the agent's before
    assert errors.count("Traceback") == 1  # that of the launcher
    assert "race condition" not in errors


@pytest.mark.slow
def test_a_machine_that_cannot_begin_is_not_waited_for():
    machines = [start("machine_0"), start("machine_1", LACKS_A_PACKAGE="")]
    errors = [machine.communicate(timeout=110)[1] for machine in machines]
    assert [machine.returncode for machine in machines] == [1, 1]
    assert "Machine 1 has left before all ranks had met" in errors[0]
    assert "a package that only other machines have" in errors[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["1 2 0 29875", "2 2 1 29875 3"],
            "with --num-gpus 1 --max-restarts 0 and --num-gpus 2 --max-restarts 3: give all the",
        ),
        (["1 3 1 29876", "1 2 0 29876"], "--num-machines 2 and --num-machines 3: give all the"),
        (["1 3 0 29877", "1 3 1 29877", "1 3 1 29877"], "two machines have --machine-rank 1: give"),
    ],
)
def test_machines_whose_flags_contradict_each_other_end_at_once(flags, message):
    machines = [start(f"machine_with {numbers}") for numbers in flags]
    errors = [machine.communicate(timeout=110)[1] for machine in machines]
    assert [machine.returncode for machine in machines] == [1] * len(flags)
    for one in errors:
        assert message in one


@pytest.mark.slow
def test_a_machine_with_other_flags_that_comes_later_ends_alone():
    machines = [start(f"machine_that_stays 2 {number}") for number in (0, 1)]
    for machine in machines:
        wait_for_calls(machine, 1)
    time.sleep(2)  # the launchers look now and then
    stray = start("machine_that_stays 3 2")
    errors = stray.communicate(timeout=110)[1]
    assert stray.returncode == 1
    assert "machines were started with --num-machines 2 and --num-machines 3" in errors
    for machine in machines:
        errors = machine.communicate(timeout=110)[1]
        assert machine.returncode == 0, errors


@pytest.mark.slow
def test_a_first_machine_that_comes_back_with_other_flags_ends_all():
    machines = [start(f"machine_that_restarts meet_for_ever {number}") for number in (0, 1)]
    for machine in machines:
        wait_for_calls(machine, 1)
    time.sleep(2)  # the launchers look now and then
    machines[0].kill()
    machines[0].communicate()
    machines[0] = start("machine_with 1 2 0 29883 3")
    try:
        outputs = [machine.communicate(timeout=50) for machine in machines]
    finally:
        for machine in machines:
            machine.kill()
    assert [machine.returncode for machine in machines] == [1, 1]
    for output, errors in outputs:
        assert "started with --max-restarts 3 and --max-restarts 1: give all the same" in errors
        assert "called" not in output  # they do not meet


@pytest.mark.slow
def test_a_first_machine_that_dies_just_when_all_have_come_is_waited_for():
    names = ["machine_that_dies_where_all_meet 0", "machine_that_restarts meet_once 1"]
    machines = [start(name) for name in names]
    machines[0].communicate(timeout=60)
    assert machines[0].returncode == -signal.SIGKILL
    time.sleep(2)
    machines[0] = start("machine_that_restarts meet_once 0")
    try:
        outputs = [machine.communicate(timeout=40) for machine in reversed(machines)]
    finally:
        for machine in machines:
            machine.kill()
    for machine, (output, errors) in zip(reversed(machines), outputs, strict=True):
        assert (machine.returncode, output) == (0, "all are here\n"), errors
    assert "Machine 0 at 127.0.0.1 is gone; waiting for it" in outputs[0][1]


@pytest.mark.slow
def test_a_machine_that_dies_just_when_all_have_come_is_waited_for():
    # The first one to come has the first number for torch's agents: the other waited for it.
    names = ["machine_that_dies_where_all_meet 1", "machine_that_restarts meet_once 0"]
    machines = [start(name) for name in names]
    machines[0].communicate(timeout=60)
    machines[0] = start("machine_that_restarts meet_once 1")
    try:
        outputs = [machine.communicate(timeout=100) for machine in machines]
    finally:
        for machine in machines:
            machine.kill()
    for machine, (output, errors) in zip(machines, outputs, strict=True):
        assert (machine.returncode, output) == (0, "all are here\n"), errors


@pytest.mark.slow
def test_a_machine_that_waits_long_for_others_says_so():
    process = start("wait_for_machine")
    waiting = "Waiting for all 2 machines to come to 127.0.0.1:29871\n"
    assert process.stderr.readline() == waiting
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_a_function_may_return_what_cannot_be_sent():
    process = start("return_a_lock")
    output, errors = process.communicate(timeout=110)
    assert (process.returncode, output) == (0, "None\n"), errors
    assert "What the function returned (lock) cannot be sent to the launcher" in errors
    assert errors.count("returned") == 1  # nobody asks for that of rank 1


@pytest.mark.slow
def test_a_rank_that_ends_without_a_word_is_started_again():
    process = start("leave_once")
    output, errors = process.communicate(timeout=110)
    assert (process.returncode, json.loads(output)) == (0, "done")
    assert "Rank 1 ended with exit code 0 in the middle of its program" in errors
    assert "Restart 1 of 1" in errors


@pytest.mark.slow
def test_processes_that_ranks_leave_in_the_background_are_not_waited_for():
    process = start("return_beside_a_child")
    output, _ = process.communicate(timeout=50)  # those go on for a minute
    assert (process.returncode, json.loads(output)) == (0, "done")


@pytest.mark.slow
@pytest.mark.parametrize(("code", "calls"), [(0, 2), (75, 2), (3, 4)])
def test_exit_codes_that_were_asked_for_are_no_failures(code, calls):
    process = start(f"exit_with_{code}")
    output, errors = process.communicate(timeout=110)
    assert output.count("called") == calls
    if code == 3:
        assert "Restart 1 of 1" in errors
        assert "ended with exit code 3" in errors
        assert process.returncode == 1
    else:
        assert "Restart" not in errors
        assert process.returncode == code


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_ends_processes_that_do_not_mind_it_and_starts_none(number):
    process = start("wait_for_signal")
    wait_for_calls(process, 2)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert "called" not in output
    assert "Restart" not in errors


@pytest.mark.slow
def test_a_single_process_is_restarted_too():
    process = start("die_once_alone")
    output, errors = process.communicate(timeout=110)
    assert json.loads(output)["restarted"] == [True]
    assert "Rank 0 was killed by SIGKILL" in errors


@pytest.mark.slow
@pytest.mark.parametrize("program", ["talk", "return_beside_a_stubborn_thread"])
def test_a_signal_ends_ranks_that_wait_for_others_or_for_a_thread(program):
    process = start(program)
    wait_for_calls(process, 2)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "code"),
    [((), REQUEUE_EXIT_CODE), (TORCHRUN, 1)],  # torchrun keeps the code to itself
    ids=["launch", "torchrun"],
)
def test_a_rank_that_still_saves_is_not_ended_because_others_are_done(launcher, code):
    process = start("save_long_after_the_others_have_gone", *launcher)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert output == "saved\n"


@pytest.mark.slow
@pytest.mark.parametrize("last", [0, 1])
def test_a_machine_that_has_stopped_waits_for_one_that_still_saves(last):
    machines = [start(f"machine_saves {machine} {last}") for machine in (0, 1)]
    for machine in machines:
        wait_for_calls(machine, 1)
    time.sleep(18)
    assert machines[1 - last].poll() is None
    output, errors = machines[last].communicate(timeout=60)
    assert (machines[last].returncode, output) == (REQUEUE_EXIT_CODE, "saved\n"), errors
    _, errors = machines[1 - last].communicate(timeout=10)
    assert machines[1 - last].returncode == REQUEUE_EXIT_CODE, errors


@pytest.mark.slow
def test_a_rank_that_dies_in_the_last_save_is_restarted_with_those_of_other_machines():
    machines = [start(f"machine_that_restarts die_at_the_end_of_a_run {n}") for n in (0, 1)]
    for machine in machines:
        output, errors = machine.communicate(timeout=60)
        assert (machine.returncode, output) == (0, "restarted\n"), errors


@pytest.mark.slow
def test_a_rank_that_dies_when_another_machine_is_done_ends_its_own():
    function = "die_when_the_other_is_done"
    machines = [start(f"machine_that_restarts {function} {number}") for number in (0, 1)]
    errors = [machine.communicate(timeout=60)[1] for machine in machines]
    assert [machine.returncode for machine in machines] == [1, 0]
    assert "Rank 0 was killed by SIGKILL" in errors[0]
    assert "Machine 1 has come to the end of its program" in errors[0]


@pytest.mark.slow
def test_a_machine_that_waits_for_a_dead_one_stops_at_once():
    machines = [start(f"machine_that_restarts meet_for_ever {number}") for number in (0, 1)]
    for machine in machines:
        wait_for_calls(machine, 1)
    machines[1].kill()
    machines[1].communicate()
    time.sleep(4)
    machines[0].terminate()
    _, errors = machines[0].communicate(timeout=20)
    assert "Restart 1 of 1" in errors
    assert machines[0].returncode == REQUEUE_EXIT_CODE, errors


@pytest.mark.slow
def test_a_second_signal_ends_a_machine_that_has_stopped_and_waits_for_others():
    machines = [start(f"machine_saves {machine} 1") for machine in (0, 1)]
    wait_for_calls(machines[0], 1)
    for _ in range(2):
        time.sleep(2)
        machines[0].send_signal(signal.SIGTERM)
    _, errors = machines[0].communicate(timeout=10)
    assert machines[0].returncode == REQUEUE_EXIT_CODE, errors
    machines[1].kill()
    machines[1].communicate()


@pytest.mark.slow
def test_a_rank_that_stops_does_not_wait_for_those_that_have_returned():
    process = start("stop_on_rank_0_alone", *TORCHRUN)
    _, errors = process.communicate(timeout=60)
    assert "exitcode  : 75" in errors


@pytest.mark.slow
def test_another_process_of_the_program_that_fails_is_no_rank():
    process = start("beside_a_stranger")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "done\n"), errors


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [(), TORCHRUN], ids=["launch", "torchrun"])
def test_processes_die_with_a_launcher_that_is_killed(launcher):
    process = start("stay", *launcher)
    wait_for_calls(process, 2)
    process.kill()
    process.communicate(timeout=15)  # which ends when the last process that writes has


@pytest.mark.slow
def test_a_second_signal_kills_processes_that_do_not_end():
    process = start("wait_stubbornly")
    wait_for_calls(process, 2)
    process.send_signal(signal.SIGTERM)
    time.sleep(2)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "SIGTERM: killing the processes" in errors


@pytest.mark.slow
def test_a_launcher_that_waits_for_other_machines_ends_at_a_signal():
    process = start("wait_for_machine")
    assert process.stdout.readline() == "waiting\n"
    time.sleep(2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, errors


@pytest.mark.slow
def test_a_rank_leaves_when_rank_0_has_what_it_sent():
    process = start("stop_with_a_slow_rank_0")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (75, "saved\n"), errors


@pytest.mark.slow
@pytest.mark.parametrize("program", ["fail_to_stop", "fail_to_stop_twice"])
def test_a_run_that_failed_while_it_was_stopped_does_not_count_as_saved(program):
    process = start(program)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "ZeroDivisionError: the run is not saved" in errors


@pytest.mark.slow
def test_the_error_shown_is_that_of_the_last_attempt():
    process = start("fail_in_two_ways")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "ConfigError: a mistake of the first attempt\nRestart 1 of 1" in errors
    assert errors.rstrip().endswith("RuntimeError: the error of the second attempt")


@pytest.mark.slow
def test_a_signal_ends_processes_that_wait_for_one_that_starts_slowly(tmp_path):
    process = start("wait_for_signal", TMPDIR=str(tmp_path), SLOW_START="12")
    while not list(tmp_path.glob("*/started_*")):
        time.sleep(0.1)
    time.sleep(2)  # it is in code that no signal interrupts
    assert len(list(tmp_path.glob("*/started_*"))) == 1
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, errors


@pytest.mark.slow
def test_a_signal_ends_processes_that_import_for_long_without_a_word(tmp_path):
    process = start("wait_for_signal", TMPDIR=str(tmp_path), SLOW_START="30")
    while not (tmp_path / "one_starts_slowly").exists():
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=25)
    assert process.returncode == 128 + signal.SIGTERM
    # The other process may wait for this one, and torch then tells that it is interrupted.
    assert errors.startswith("SIGTERM: SIGUSR1 to the processes\n")
    assert "Traceback" not in errors


@pytest.mark.slow
def test_a_signal_stops_a_run_where_the_disk_is_full(small_disk):
    process = start("wait_for_signal", TMPDIR=str(small_disk))
    wait_for_calls(process, 2)
    Path(small_disk, "others").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=25)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("is_in_function", [False, True], ids=["in imports", "before training"])
def test_a_signal_to_a_run_that_is_started_again_leaves_it_to_be_resumed(tmp_path, is_in_function):
    process = start("wait_for_signal", TMPDIR=str(tmp_path))
    wait_for_calls(process, 2)
    os.kill(int(next(tmp_path.glob("*/started_1")).read_text()), signal.SIGKILL)
    for line in process.stderr:
        if "Restart 1 of 3" in line:
            break
    if is_in_function:
        wait_for_calls(process, 2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == REQUEUE_EXIT_CODE, errors


def main(name: str) -> None:
    if name == "die_once":
        print(json.dumps(launch(die_once, 2, max_restarts=1)))
        assert not dist.is_initialized()
    elif name in ("leave_once", "return_beside_a_child"):
        print(json.dumps(launch(globals()[name], 2, max_restarts=1)))
    elif name == "die_once_alone":
        print(json.dumps(launch(die_once, 1, max_restarts=1)))
    elif name == "wait_for_signal":
        launch(wait_for_signal, 2, args=(False,), max_restarts=3)
    elif name == "talk":
        launch(talk, 2, max_restarts=1)
    elif name == "wait_stubbornly":
        launch(wait_for_signal, 2, args=(True,), max_restarts=3)
    elif name == "wait_for_machine":
        print("waiting", flush=True)
        launch(wait_for_signal, 1, 2, 0, "127.0.0.1:29871", args=(False,))
    elif name.startswith("machine_with "):
        num_gpus, num_machines, machine, port, *restarts = map(int, name.split()[1:])
        address = f"{['127.0.0.1', 'localhost'][machine % 2]}:{port}"
        restarts = sum(restarts)
        launch(comm.synchronize, num_gpus, num_machines, machine, address, max_restarts=restarts)
    elif name.startswith("machine_that_stays "):
        num_machines, machine = map(int, name.split()[1:])
        launch(stay, 1, num_machines, machine, "127.0.0.1:29879")
    elif name.startswith("machine_that_dies_where_all_meet "):
        # torch's agents have found each other then, and number their processes.
        SimpleElasticAgent._assign_worker_ranks = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        launch(meet_once, 1, 2, int(name[-1]), "127.0.0.1:29883", max_restarts=1)
    elif name.startswith("machine_that_restarts "):
        _, function, machine = name.split()
        address = "127.0.0.1:29883"
        print(launch(globals()[function], 1, 2, int(machine), address, max_restarts=1))
    elif name.startswith("machine_saves "):
        machine, last = map(int, name.split()[1:])
        launch(save_on_one_machine, 1, 2, machine, "127.0.0.1:29881", args=(last,))
    elif name == "beside_a_stranger":
        threading.Thread(target=start_a_stranger_that_fails).start()
        print(launch(return_late, 2))
    elif name == "return_a_lock":
        print(launch(threading.Lock, 2))
    elif name.startswith("machine_"):
        launch(comm.synchronize, 1, 2, int(name[-1]), "127.0.0.1:29873")
    elif name in ("fail_to_stop_twice", "fail_in_two_ways"):
        launch(globals()[name.removesuffix("_twice")], 2, max_restarts=1)
    elif name.startswith("exit_with_"):
        launch(exit_early, 2, args=(int(name.removeprefix("exit_with_")),), max_restarts=1)
    else:
        launch(globals()[name], 2)


if __name__ == "__mp_main__" and "LACKS_A_PACKAGE" in os.environ:
    raise ModuleNotFoundError("a package that only other machines have")
if __name__ == "__mp_main__" and "SLOW_START" in os.environ:
    with suppress(FileExistsError):  # the other process was first
        Path(os.environ["TMPDIR"], "one_starts_slowly").mkdir()
        time.sleep(int(os.environ["SLOW_START"]))

if __name__ == "__main__":
    main(sys.argv[1])
