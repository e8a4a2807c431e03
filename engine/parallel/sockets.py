"""The open connections of this process: those of a group can outlive it.

torch keeps a gloo group alive that a DistributedDataParallel was made with, after both are gone;
other ranks would wait for this one as long as its connections are open.
"""

import os
import socket
import stat
from contextlib import suppress

_DESCRIPTORS = "/proc/self/fd"

Sockets = set[tuple[int, int]]  # file descriptors, with the inodes that they stood for


def open_sockets() -> Sockets:
    """The sockets of this process; none where the system does not list them."""
    found = set()
    if os.path.isdir(_DESCRIPTORS):
        for descriptor in map(int, os.listdir(_DESCRIPTORS)):
            with suppress(OSError):  # the one that the folder was read by is closed
                status = os.fstat(descriptor)
                if stat.S_ISSOCK(status.st_mode):
                    found.add((descriptor, status.st_ino))
    return found


def end_connections(sockets: Sockets, except_port: int) -> None:
    """Shut down those of the sockets that are still open, but for connections to a port."""
    for descriptor, _ in sockets & open_sockets():
        # One may be closed meanwhile, by a thread of a group that ends.
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                ports = {connection.getsockname()[1], connection.getpeername()[1]}
                if except_port not in ports:
                    connection.shutdown(socket.SHUT_RDWR)
