"""Which of this machine's addresses and network interfaces the other machines can reach."""

import socket
import struct
import sys


class FlagError(ValueError):
    """Flags of the launcher that cannot be, or that contradict what has started this process."""


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of `host:port` or `tcp://host:port`."""
    host, colon, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not (host and colon and port.isdecimal() and 1 <= int(port) <= 65535):
        raise FlagError(
            f"--dist-url {endpoint}: expected host:port of machine 0, with a port from 1 to 65535"
        )
    return host.strip("[]"), int(port)


def find_local_address(host: str, port: int) -> str:
    """The address of this machine on its way to `host`."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # sends nothing: it only looks up the route
            return probe.getsockname()[0]
    except (OSError, UnicodeError) as error:
        raise FlagError(
            f"there is no way from here to machine 0 at {host} (--dist-url or MASTER_ADDR): {error}"
        ) from error


def find_interface(address: str) -> str | None:
    """The name of the network interface with this IPv4 address, on Linux; None if not found."""
    if not sys.platform.startswith("linux"):
        return None
    import fcntl

    get_address = 0x8915  # SIOCGIFADDR of netdevice(7)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, get_address, struct.pack("256s", name.encode()))
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
