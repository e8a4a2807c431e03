"""Watch: the processes of one machine under torch's agent; what waits in vain is ended."""

import logging
import math
import signal
import time
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any, TypeAlias

from engine.parallel.children import (
    LONGEST_SAVE,
    PATIENCE,
    Ends,
    call_later,
    is_running,
    send,
    spawned_pids,
)
from engine.parallel.heartbeat import Heartbeat
from engine.parallel.job import Exit, Job
from engine.parallel.network import FlagError

MONITOR = 0.1  # seconds until the agent notices a death
GLANCE = 0.02  # seconds between looks for processes that have just begun
LAST_WORDS = 3.0  # seconds in which other machines can read why machine 0 ends

Agent: TypeAlias = "futures.Future[dict[int, Any]]"
"""torch's launcher in its thread; gives what each rank of this machine has returned."""

logger = logging.getLogger(__name__)


class LaunchError(RuntimeError):
    """A process or a machine of the run has failed; the message says which, how and where."""


class Watch:
    """Waits for the agent, and ends what it waits for in vain.

    `strangers` are processes that were there before the agent's own.
    """

    def __init__(self, job: Job, agent: Agent, heartbeat: Heartbeat, strangers: set[int]) -> None:
        self.job = job
        self.agent = agent
        self.heartbeat = heartbeat
        self.strangers = strangers
        self.ends = Ends()
        self.pids: list[int] = []  # of the processes that have begun
        self.began = 0.0  # when the last of them did
        self.lost: int | None = None  # a machine that is silent
        self.failed: set[int] = set()  # pids
        self.has_killed = False  # what did not end by itself when the run was asked to stop
        # When to go on without the agent; to kill who has not met the others of a run that is
        # asked to stop; and who is done with it.
        self.deadline = self.stop_deadline = self.done_deadline = math.inf
        self.alone_deadline = math.inf  # when to go on without machines that are done
        self.stuck_deadline = math.inf  # when the agent has had its time to see that all are gone

    def wait(self) -> list[Any]:
        """What each rank has returned, when all have."""
        try:
            return self._wait()
        finally:
            if not self.agent.done():
                self._end_all()

    def _wait(self) -> list[Any]:
        while not self._is_agent_done() and time.monotonic() < self.deadline:
            pids = list(self.job.pids().values())
            if pids != self.pids:
                self.pids, self.began = pids, time.monotonic()
            self._end_left_alone()
            self._refuse_other_machines()
            self._give_up_silent_machine()
            self._end_peers_of_failed()
            self._end_peers_of_silent()
            self._leave_stuck_agent()
            self._end_left_behind()
            if self.job.stop_code is not None:
                self._see_to_stop()
        self._refuse_other_machines()  # the agent may have been quicker
        if not self.agent.done() and self.job.stop_code is not None:
            return [Exit(self.job.stop_code)]
        if self.lost is not None and not (self.agent.done() and self.agent.exception() is None):
            limit = self.heartbeat.limit
            raise LaunchError(f"machine {self.lost} has been silent for {limit:.0f} s")
        results = self.agent.result()
        return [results[rank] for rank in sorted(results)]

    def _is_agent_done(self) -> bool:
        # A process has to be watched before it ends: what comes after is the agent's.
        pause = 2 * MONITOR if self._are_all_there() else GLANCE
        return bool(futures.wait([self.agent], timeout=pause).done)

    def _are_all_there(self) -> bool:
        return len(self.pids) == self.job.num_processes and all(map(is_running, self.pids))

    def _refuse_other_machines(self) -> None:
        """End where the flags of the machines that come together contradict each other, as this one
        has heard or a process of it has found."""
        self.heartbeat.have_met = self.heartbeat.have_met or self.job.have_met
        kind, _, found = self.job.find_mistake().partition(": ")
        if kind == FlagError.__name__ and self.job.num_machines > 1:
            self.heartbeat.contradiction = found
        if self.heartbeat.contradiction:
            self._end_all()
            # Python aborts if it ends while a thread is in torch.
            futures.wait([self.agent], timeout=LAST_WORDS)
            if self.job.machine_rank == 0:
                time.sleep(LAST_WORDS)
            raise FlagError(self.heartbeat.contradiction)

    def _give_up_silent_machine(self) -> None:
        if self.lost is not None and self.heartbeat.hears(self.lost):
            self.lost, self.deadline = None, math.inf
        if (silent := self.heartbeat.take_silent()) is None:
            return
        self.lost = silent
        logger.error("Machine %d has been silent for %.0f s", silent, self.heartbeat.limit)
        is_at_work = any(map(is_running, self.pids))
        send(signal.SIGKILL, self.pids)
        if self.job.machine_rank > 0:  # its agent may wait on the link too
            patience = PATIENCE if is_at_work else self.job.timeout.total_seconds()
            self.deadline = time.monotonic() + patience

    def _end_left_alone(self) -> None:
        """End those that wait for the ranks of a machine which has left before all had met."""
        outside = list(filter(is_running, self.job.pids_outside()))
        if outside and (left := self.heartbeat.find_left(since=self.began)) is not None:
            self.job.mistake(0).write_text(f"Machine {left} has left before all ranks had met")
            send(signal.SIGKILL, outside)

    def _end_peers_of_failed(self) -> None:
        """End what waits for a rank that has failed: torch asks it to, and gives it half a
        minute."""
        job, ends = self.job, self.ends
        spawned = spawned_pids() - self.strangers  # also those that have not begun
        ends.watch(spawned)
        failed = ends.take_failed()
        self.failed |= failed
        # One that never began may be none of the ranks: then these are all there.
        has_begun = not failed.isdisjoint(job.pids().values())
        is_rank = has_begun or sum(map(is_running, spawned)) < job.num_processes
        if failed and is_rank and job.stop_code is None:
            peers = ends.find_peers(failed)  # not those that were started in their place
            call_later(PATIENCE, _end, peers, lambda: job.pids().values())
            call_later(5 * MONITOR, _end, peers, job.pids_outside)  # torch knows by then who failed

    def _end_peers_of_silent(self) -> None:
        """End what waits for a rank that has left with exit code 0: torch takes that for a good
        end, and waits for a result for ever."""
        job = self.job
        if (local_rank := job.find_silent(self.ends.good)) is None:
            return
        rank = job.machine_rank * job.num_processes + local_rank
        how = "ended with exit code 0 in the middle of its program, as os._exit does"
        job.mistake(local_rank).write_text(f"Rank {rank} {how}")
        # One that leaves may take a while to be gone, and no signal changes its exit code.
        others = [pid for local, pid in job.pids().items() if not job.left(local).exists()]
        if not any(map(is_running, others)):
            raise LaunchError(job.find_mistake())
        send(signal.SIGKILL, others)  # that is a failure for torch too

    def _leave_stuck_agent(self) -> None:
        """Leave torch's agent where a process was killed when all had returned: now and then it
        waits for ever to tell that one that it may go."""
        failed = self.failed.intersection(self.pids)
        if not (failed and self.job.are_done()) or any(map(is_running, self.pids)):
            self.stuck_deadline = math.inf
            return
        self.stuck_deadline = min(self.stuck_deadline, time.monotonic() + PATIENCE)
        if time.monotonic() > self.stuck_deadline:
            local = next(local for local, pid in self.job.pids().items() if pid in failed)
            rank = self.job.machine_rank * self.job.num_processes + local
            raise LaunchError(f"Rank {rank} was killed when all had come to the end of the program")

    def _end_left_behind(self) -> None:
        """End where processes are to start, or to start again, with those of a machine that is done
        with its program: torch's agent there takes no part in it."""
        done, self.heartbeat.is_done = self.heartbeat.done, self.job.are_done()
        waits = not any(map(is_running, spawned_pids() - self.strangers))
        is_stopped = self.job.stop_code is not None
        if done is None or is_stopped or self.heartbeat.is_done or not waits:
            self.alone_deadline = math.inf
            return
        self.alone_deadline = min(self.alone_deadline, time.monotonic() + PATIENCE)
        if time.monotonic() > self.alone_deadline:
            raise LaunchError(
                f"Machine {done} has come to the end of its program: what has died on this one "
                "cannot be restarted with it. Start the run again on all machines"
            )

    def _see_to_stop(self) -> None:
        """Have a run that is asked to stop do so in time, but for ranks that still save."""
        now = time.monotonic()
        is_done = self.job.are_done()
        if not (is_done or self._are_all_there()):
            # Those that have not begun have nothing to save, and may import for long.
            self._kill(spawned_pids().difference(self.strangers, self.pids))
        self.stop_deadline = min(self.stop_deadline, now + PATIENCE)
        self.done_deadline = min(self.done_deadline, now + PATIENCE) if is_done else math.inf
        if now > self.stop_deadline:
            # They wait for others who will not come, in code that no signal interrupts.
            self._kill(self.job.pids_outside())
        if now > self.done_deadline:
            self._kill(self.pids)  # threads of the user's own keep them
        if not any(map(is_running, self.pids)):
            # The agent may have started others in their place: they will see that they are to stop.
            patience = 3 * PATIENCE if self.pids else PATIENCE
            if is_done and self.heartbeat.hears_others():  # they may save; the agent waits for them
                patience = LONGEST_SAVE
            self.deadline = min(self.deadline, now + patience)

    def _end_all(self) -> None:
        """End the processes, also those that have not begun and those that the agent may yet start:
        at its end Python would wait for them."""
        if self.job.stop_code is None:
            self.job.stop_with(1)
        send(signal.SIGKILL, spawned_pids() - self.strangers)

    def _kill(self, pids: Iterable[int]) -> None:
        """Kill processes of a run that is asked to stop, if there are any: no failure of theirs."""
        running = list(filter(is_running, pids))
        self.has_killed = self.has_killed or bool(running)
        send(signal.SIGKILL, running)


def _end(peers: set[int], find_pids: Callable[[], Iterable[int]]) -> None:
    send(signal.SIGKILL, peers.intersection(find_pids()))
