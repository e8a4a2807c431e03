"""Mailbox: bytes from every rank for rank 0, which alone waits for them."""

import struct

import torch
import torch.distributed as dist

from engine.parallel import comm

TAG = 20_771  # apart from messages of the user's own
LENGTH = struct.Struct("<q")


class Mailbox:
    """A message of any length from each rank to rank 0, as often as all ranks `collect`.

    A message has room for as much as the one before, as both sides know. A longer one follows after
    one that tells its length.
    """

    def __init__(self) -> None:
        self._rooms = [0] * comm.get_world_size()  # bytes of a message, by the rank that sends it
        self._under_way: list[tuple[dist.Work, torch.Tensor]] = []

    def collect(self, data: bytes) -> list[bytes]:
        """On rank 0, the other ranks' messages in their order; elsewhere [], while they travel."""
        if comm.get_rank() > 0:
            self._send(data)
            return []
        senders = range(1, len(self._rooms))
        messages = self._receive({rank: LENGTH.size + self._rooms[rank] for rank in senders})
        lengths = {rank: LENGTH.unpack_from(data)[0] for rank, data in messages.items()}
        longer = {rank: size for rank, size in lengths.items() if size > self._rooms[rank]}
        found = {rank: data[LENGTH.size :][: lengths[rank]] for rank, data in messages.items()}
        if longer:
            found |= self._receive(longer)
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
        work = comm.gloo_group().send([message], 0, TAG)
        self._under_way.append((work, message))

    def _receive(self, sizes: dict[int, int]) -> dict[int, bytes]:
        """Messages of such sizes, by the ranks that send them."""
        messages = {rank: torch.empty(size, dtype=torch.uint8) for rank, size in sizes.items()}
        group = comm.gloo_group()
        for work in [group.recv([message], rank, TAG) for rank, message in messages.items()]:
            work.wait()
        return {rank: message.numpy().tobytes() for rank, message in messages.items()}
