import socket
import sys

import pytest

from engine.parallel.network import FlagError, find_interface, find_local_address, split_endpoint


@pytest.mark.parametrize("endpoint", ["node1:29500", "tcp://node1:29500"])
def test_an_endpoint_is_a_host_and_a_port(endpoint):
    assert split_endpoint(endpoint) == ("node1", 29500)


@pytest.mark.parametrize(
    "endpoint", ["node1", "node1:", ":29500", "node1:http", "tcp://node1", "node1:0", "node1:65536"]
)
def test_an_endpoint_without_both_is_refused(endpoint):
    with pytest.raises(FlagError, match=f"--dist-url {endpoint}: expected host:port of machine 0"):
        split_endpoint(endpoint)


def test_the_way_to_this_machine_is_its_own_address():
    assert find_local_address("127.0.0.1", 29500) == "127.0.0.1"


@pytest.mark.parametrize("host", ["no.such.host.invalid", "no..such.host"])
def test_a_machine_that_nobody_knows_is_named(host):
    with pytest.raises(FlagError, match=f"no way from here to machine 0 at {host} .--dist-url"):
        find_local_address(host, 29500)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only asked on Linux")
def test_an_address_belongs_to_an_interface():
    name = find_interface("127.0.0.1")
    assert name in {name for _, name in socket.if_nameindex()}
    assert find_interface("203.0.113.7") is None  # an address for examples
