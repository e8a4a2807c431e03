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
        self._rank = comm.get_rank()
        self._room = 0  # of this rank's messages, in bytes
        self._under_way: list[tuple[dist.Work, torch.Tensor]] = []
        # On rank 0, those that messages of the other ranks come in.
        self._buffers = [_make_buffer(0) for _ in range(1, comm.get_world_size())]

    def collect(self, data: bytes) -> list[bytes]:
        """On rank 0, the other ranks' messages in their order; elsewhere [], while they travel."""
        if self._rank > 0:
            self._send(data)
            return []
        group, buffers = comm.gloo_group(), self._buffers
        works = [group.recv([one], rank, TAG) for rank, one in enumerate(buffers, start=1)]
        messages = []
        for place, work in enumerate(works):
            work.wait()
            message = buffers[place].numpy().tobytes()
            (length,) = LENGTH.unpack_from(message)
            room = len(message) - LENGTH.size
            if length != room:
                buffers[place] = _make_buffer(length)
            if length > room:
                longer = torch.empty(length, dtype=torch.uint8, device="cpu")
                group.recv([longer], place + 1, TAG).wait()
                messages.append(longer.numpy().tobytes())
            else:
                messages.append(message[LENGTH.size :][:length])
        return messages

    def finish(self) -> None:
        """Wait until rank 0 has what was sent."""
        for work, _ in self._under_way:
            work.wait()
        self._under_way = []

    def _send(self, data: bytes) -> None:
        self.finish()
        room, self._room = self._room, len(data)
        head = LENGTH.pack(len(data))
        if len(data) <= room:
            self._post(head + data.ljust(room, b"\0"))
        else:
            self._post(head.ljust(LENGTH.size + room, b"\0"))
            self._post(data)

    def _post(self, data: bytes) -> None:
        message = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        # The group's own methods: `dist.isend` and `irecv` take longer than the rest of a message.
        work = comm.gloo_group().send([message], 0, TAG)
        self._under_way.append((work, message))


def _make_buffer(room: int) -> torch.Tensor:
    return torch.empty(LENGTH.size + room, dtype=torch.uint8, device="cpu")
