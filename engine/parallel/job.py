"""What one machine runs, and what the processes of it tell each other: files in a folder."""

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from engine.parallel.children import is_running
from engine.parallel.network import FlagError


@dataclass(frozen=True)
class Exit:
    """What a process returns that was asked to end: no failure, nothing to start again."""

    code: int


@dataclass(frozen=True)
class Job:
    """What one machine is to run; `host` and `port` are those of machine 0."""

    main_func: Callable[..., Any]
    args: tuple
    num_processes: int
    num_machines: int
    machine_rank: int
    host: str
    port: int
    address: str
    """Where the other machines reach this one."""
    timeout: timedelta
    max_restarts: int
    folder: str
    """An empty one, for what this machine's processes tell each other."""
    start_method: str = field(default_factory=multiprocessing.get_start_method)
    """How they start theirs, such as data workers: as any program of the user's does."""

    @property
    def flags(self) -> dict[str, int]:
        """What all machines have to be started with alike."""
        return {
            "--num-gpus": self.num_processes,
            "--num-machines": self.num_machines,
            "--max-restarts": self.max_restarts,
        }

    def meet_others(self, store: dist.Store, rank: int) -> None:
        """Wait at the store for all ranks, and refuse that two of them have one number."""
        if store.add(f"rank {rank}", 1) > 1:
            numbers = f"each its own, 0 to {self.num_machines - 1}"
            twice = f"two machines have --machine-rank {self.machine_rank}: give {numbers}"
            store.set("contradiction", twice)
        if store.add("ranks", 1) == self.num_machines * self.num_processes:
            store.set("all are here", "")
        store.wait(["all are here"], self.timeout)
        if store.check(["contradiction"]):
            raise FlagError(store.get("contradiction").decode())

    @property
    def stop_code(self) -> int | None:
        """The exit code of a run that was asked to stop."""
        codes = [int(file.suffix[1:]) for file in Path(self.folder).glob("stop.*")]
        return min(codes, default=None)  # 75, that it can be resumed, is less than that of a signal

    def describe_progress(self, failed: int, was_killed: bool) -> str:
        """How far the ranks were when one failed: it may have waited for others that were done."""
        if not was_killed and not self.started(failed % self.num_processes).exists():
            return (
                "\nIt did not come to the function: new processes import the program first, "
                'without what it has under `if __name__ == "__main__":`'
            )
        first = self.machine_rank * self.num_processes
        ranks = [
            first + local for local in range(self.num_processes) if self.returned(local).exists()
        ]
        if not ranks:
            return ""
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        return f"\nBefore that, {who} had come to the end of the program"

    def returned(self, local_rank: int) -> Path:
        """The file that a process leaves when `main_func` has returned."""
        return Path(self.folder, f"returned_{local_rank}")

    def left(self, local_rank: int) -> Path:
        """The file that a process leaves when it ends by `os._exit(0)`."""
        return Path(self.folder, f"left_{local_rank}")

    def joined(self, local_rank: int) -> Path:
        """The file that a process leaves when it has met all others."""
        return Path(self.folder, f"joined_{local_rank}")

    @property
    def have_met(self) -> bool:
        """Whether processes of this machine have met all others."""
        return any(self.joined(local).exists() for local in range(self.num_processes))

    def started(self, local_rank: int) -> Path:
        """The file with the pid of a process of this machine."""
        return Path(self.folder, f"started_{local_rank}")

    def mistake(self, local_rank: int) -> Path:
        """The file with the error of a process, if it is one that needs no traceback."""
        return Path(self.folder, f"mistake_{local_rank}")

    def note_failure(self, local_rank: int, error: BaseException, is_mistake: bool) -> None:
        """Leave the traceback of a process, which of a mistake nobody needs, for the launcher; on a
        full disk, print it."""
        text = "".join(traceback.format_exception(error)).rstrip()
        try:
            self.failure(local_rank).write_text(text, "utf-8", "backslashreplace")
            if is_mistake:
                self.mistake(local_rank).write_text(f"{type(error).__name__}: {error}")
        except OSError:
            self.failure(local_rank).unlink(missing_ok=True)
            print(text, file=sys.stderr)

    def failure(self, local_rank: int) -> Path:
        """The file with the traceback of a process that has failed."""
        return Path(self.folder, f"failure_{local_rank}")

    def take_first_failure(self) -> tuple[int, str]:
        """The first rank of those that have failed, and its traceback. The next failure is another
        story."""
        files = {local: self.failure(local) for local in range(self.num_processes)}
        times = {local: file.stat().st_mtime_ns for local, file in files.items() if file.exists()}
        first = min(times, key=times.__getitem__)
        text = files[first].read_text("utf-8")
        for local in times:
            files[local].unlink()
        return self.machine_rank * self.num_processes + first, text

    def find_mistake(self) -> str:
        """What is in the first of these files; '' if there is none."""
        files = [self.mistake(local) for local in range(self.num_processes)]
        return next((file.read_text() for file in files if file.exists()), "")

    def begin(self, local_rank: int) -> None:
        """Note that this process has a place, and remove what one before a restart may have left.

        In this order: at each moment the files tell of one of the two.
        """
        self.left(local_rank).unlink(missing_ok=True)
        if self.started(local_rank).exists():
            Path(self.folder, "restarted").touch()
        self.started(local_rank).write_text(str(os.getpid()))
        for file in (self.returned, self.joined, self.mistake, self.failure):
            file(local_rank).unlink(missing_ok=True)

    def pids(self) -> dict[int, int]:
        """By local rank, the pids of the processes of this machine that have begun."""
        files = {local: self.started(local) for local in range(self.num_processes)}
        texts = {local: file.read_text() for local, file in files.items() if file.exists()}
        return {local: int(text) for local, text in texts.items() if text}

    def was_interrupted(self) -> bool:
        """Whether processes have died, and others take their place or have taken it."""
        is_over = {local: not is_running(pid) for local, pid in self.pids().items()}
        has_died = any(is_over[local] and not self.returned(local).exists() for local in is_over)
        return self.max_restarts > 0 and (has_died or Path(self.folder, "restarted").exists())

    def are_done(self) -> bool:
        """Whether the function has returned in all processes of this machine."""
        return all(self.returned(local).exists() for local in range(self.num_processes))

    def pids_outside(self) -> list[int]:
        """The pids of those that have begun and not met the others."""
        return [pid for local, pid in self.pids().items() if not self.joined(local).exists()]

    def find_silent(self, ended: set[int]) -> int | None:
        """The local rank of a process that left or is among those that ended, and never returned;
        None if there is none, or it was told before."""
        for local_rank, pid in self.pids().items():
            is_gone = pid in ended or self.left(local_rank).exists()
            is_known = self.returned(local_rank).exists() or self.mistake(local_rank).exists()
            if is_gone and not is_known:
                return local_rank
        return None

    def stop_with(self, code: int) -> None:
        """Have all processes know that they are to stop; on a full disk too."""
        Path(self.folder, f"stop.{code}").touch()
