"""Mailbox: bytes from every rank for rank 0."""

import struct
from itertools import count

import torch
import torch.distributed as dist

from engine.parallel import comm

TAG = 20_771  # and those after it: apart from messages of the user's own
LENGTH = struct.Struct("<q")

Transfer = tuple[dist.Work, torch.Tensor]  # with the message


class Mailbox:
    """A message of any length from each rank to rank 0, as often as all ranks `post`.

    A message has room for as much as the one before, as both sides know. A longer one follows after
    one that tells its length. All ranks make their mailboxes in the same order.
    """

    _tags = count(TAG)

    def __init__(self) -> None:
        self._tag = next(self._tags)  # messages of several may be under way at a time
        self._rooms = [0] * comm.get_world_size()  # bytes of a message, by the rank that sends it
        self._under_way: list[Transfer] = []
        self._expected: dict[int, Transfer] = {}  # by the rank that sends it

    def post(self, data: bytes) -> None:
        """Send a message; on rank 0, be ready for those of the others. Nobody waits."""
        if comm.get_rank() > 0:
            self._send(data)
        else:
            senders = range(1, len(self._rooms))
            self._expected = self._expect({at: LENGTH.size + self._rooms[at] for at in senders})

    def collect(self) -> list[bytes]:
        """On rank 0, what the other ranks have posted, in their order; elsewhere []."""
        if comm.get_rank() > 0:
            return []
        messages = self._receive(self._expected)
        lengths = {rank: LENGTH.unpack_from(data)[0] for rank, data in messages.items()}
        longer = {rank: size for rank, size in lengths.items() if size > self._rooms[rank]}
        found = {rank: data[LENGTH.size :][: lengths[rank]] for rank, data in messages.items()}
        if longer:
            found |= self._receive(self._expect(longer))
        self._rooms[1:] = lengths.values()
        return list(found.values())

    def finish(self) -> None:
        """Wait until rank 0 has what was sent."""
        for work, _ in self._under_way:
            work.wait()
        self._under_way = []

    def _send(self, data: bytes) -> None:
        self.finish()
        room, length = self._rooms[comm.get_rank()], len(data)
        head = LENGTH.pack(length)
        if length <= room:
            self._post(head + data.ljust(room, b"\0"))
        else:
            self._post(head.ljust(LENGTH.size + room, b"\0"))
            self._post(data)
        self._rooms[comm.get_rank()] = length

    def _post(self, data: bytes) -> None:
        message = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        # The group's own methods: `dist.isend` and `irecv` take longer than the rest of a message.
        work = comm.gloo_group().send([message], 0, self._tag)
        self._under_way.append((work, message))

    def _expect(self, sizes: dict[int, int]) -> dict[int, Transfer]:
        """Be ready for messages of such sizes, by the ranks that send them."""
        messages = {rank: torch.empty(size, dtype=torch.uint8) for rank, size in sizes.items()}
        group = comm.gloo_group()
        return {at: (group.recv([one], at, self._tag), one) for at, one in messages.items()}

    def _receive(self, expected: dict[int, Transfer]) -> dict[int, bytes]:
        for work, _ in expected.values():
            work.wait()
        return {rank: message.numpy().tobytes() for rank, (_, message) in expected.items()}
