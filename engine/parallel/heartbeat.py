"""Notice that another machine has fallen silent, also while everybody waits for it."""

import json
import socket
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType

import torch.distributed as dist


class Heartbeat:
    """Says which machine has not been heard of for `limit` seconds; for use in a `with`.

    Each machine writes into a store on machine 0, which looks for changes; for the others it is
    enough that the store answers. A dead link keeps a thread waiting, and nobody else. Machine 0
    keeps the store until the others have left, or for `patience` seconds.

    `flags` are those that all machines must have been started with alike.
    """

    def __init__(
        self, host: str, port: int, machine: int, flags: Mapping[str, int], limit: float
    ) -> None:
        self.limit = limit
        self.contradiction = ""  # of machines' flags: set it, and all hear of it
        self.has_agreed = threading.Event()  # with the first machine, on the flags
        self.have_met = False  # all ranks: set it, and nobody ends for a machine that comes later
        self.patience = 0.0  # at the end
        self.is_done = False  # this machine, with its program: set it
        self.done: int | None = None  # another machine that is
        self._address = host, port
        self._machine = machine
        self._flags = flags
        self._watched = range(1, flags["--num-machines"]) if machine == 0 else range(0)
        self._values: dict[int, bytes] = {}
        self._heard: dict[int, float] = {}  # when, of machines that are there
        self._left: dict[int, float] = {}  # when that was seen, of machines that have said so
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._machine > 0 or kind is not None:
            self.patience = 0.0
        self._is_ending.set()
        self._thread.join(timeout=self.patience + 2)  # to say goodbye, if there is somebody

    def hears(self, machine: int) -> bool:
        """Whether a machine has been heard of, and is not given up."""
        return machine in self._heard

    def hears_others(self) -> bool:
        """Whether this is so of any machine; but for machine 0, they only hear of that."""
        return bool(self._heard)

    def take_silent(self) -> int | None:
        """A machine that has been silent for too long; it is then given up until it is back."""
        oldest = time.monotonic() - self.limit
        heard = dict(self._heard)  # the thread may add to it
        silent = next((machine for machine, when in heard.items() if when < oldest), None)
        if silent is not None:
            self._heard.pop(silent, None)
        return silent

    def find_left(self, since: float) -> int | None:
        """A machine that has said since then (`time.monotonic`) that it leaves, and has not come
        back; None if there is none."""
        left = dict(self._left)  # the thread may add to it
        return next((machine for machine, when in left.items() if when > since), None)

    def _run(self) -> None:
        timeout = timedelta(seconds=self.limit)
        while not self._is_ending.wait(0.1):
            try:
                with socket.create_connection(self._address, self.limit):
                    pass  # where nobody is there, torch would say so in twenty lines
                store = dist.TCPStore(
                    *self._address,
                    is_master=self._machine == 0,  # that of the agent, which may end before this
                    multi_tenant=True,
                    wait_for_workers=False,
                    timeout=timeout,
                )
                self._beat(dist.PrefixStore("heartbeat", store))
            except (OSError, RuntimeError):  # machine 0 is not there, yet or any more
                self._is_ending.wait(1)

    def _beat(self, store: dist.Store) -> None:
        mine = str(self._machine)
        if self._machine == 0:
            store.set("flags", json.dumps(self._flags))
        first, own = json.loads(store.get("flags")), self._flags
        if differ := [flag for flag in own if own[flag] != first[flag]]:
            ways = [" ".join(f"{flag} {flags[flag]}" for flag in differ) for flags in (first, own)]
            both = " and ".join(ways)
            self.contradiction = f"machines were started with {both}: give all the same"
        pace = min(1, self.limit / 10)  # of all but the first: they miss it as soon as others do
        has_told = False
        while True:
            self._share_contradiction(store)
            if self.is_done is not has_told:
                store.set("done", mine if self.is_done else "")
                has_told = self.is_done
            done = store.get("done").decode() if store.check(["done"]) else ""
            self.done = int(done) if done not in ("", mine) else None
            store.set(mine, str(time.time_ns()))
            store.get(mine)  # an answer
            if not differ:
                self.has_agreed.set()
            if self._machine > 0:
                self._heard[0] = time.monotonic()
            for machine in self._watched:
                self._look_at(machine, store)
            if self._is_ending.wait(self.limit / 10 if self.have_met and self._watched else pace):
                self._share_contradiction(store)
                self._wait_for_others(store)
                return store.set(mine, "left")

    def _wait_for_others(self, store: dist.Store) -> None:
        deadline = time.monotonic() + self.patience
        while self.hears_others() and time.monotonic() < deadline:
            time.sleep(0.1)
            for machine in self._watched:
                self._look_at(machine, store)
            self.take_silent()

    def _share_contradiction(self, store: dist.Store) -> None:
        if self.contradiction and not store.check(["have met"]):  # with this machine 0
            store.set("contradiction", self.contradiction)
        elif self.have_met:
            store.set("have met", "")
        elif store.check(["contradiction"]):
            self.contradiction = store.get("contradiction").decode()

    def _look_at(self, machine: int, store: dist.Store) -> None:
        if not store.check([str(machine)]):
            return
        value = store.get(str(machine))
        if value == self._values.get(machine):
            return
        self._values[machine] = value
        if value == b"left":
            self._share_contradiction(store)  # it may be why
            self._heard.pop(machine, None)
            self._left[machine] = time.monotonic()
        else:
            self._left.pop(machine, None)
            self._heard[machine] = time.monotonic()
