"""The open connections of this process: those of a group can outlive it.

torch keeps a gloo group alive that a DistributedDataParallel was made with, after both are gone;
other ranks would wait for this one as long as its connections are open.
"""

import logging
import os
import socket
import stat
from contextlib import suppress

logger = logging.getLogger(__name__)

OTHER_FILES = 512  # that a rank may have open: data, logs, the pipes of data workers
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


def allow_connections(count: int) -> None:
    """Raise this process's limit of open files (`ulimit -n`) so far that it can have so many
    connections; a warning if the system does not allow as much."""
    with suppress(ImportError):
        import resource  # not on Windows

        limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = count + OTHER_FILES
        if limit == resource.RLIM_INFINITY or limit >= needed:
            return
        limit = needed if most == resource.RLIM_INFINITY else min(needed, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
        if limit < needed:
            logger.warning(
                "This process may have %d files open, but its connections to other ranks may take "
                "%d: raise the limit (ulimit -Hn, LimitNOFILE), or expect 'Too many open files'",
                limit,
                count,
            )


def end_connections(sockets: Sockets, except_port: int) -> None:
    """Shut down those of the sockets that are still open, but for connections to a port."""
    for descriptor, _ in sockets & open_sockets():
        # One may be closed meanwhile, by a thread of a group that ends.
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                ports = {connection.getsockname()[1], connection.getpeername()[1]}
                if except_port not in ports:
                    connection.shutdown(socket.SHUT_RDWR)
