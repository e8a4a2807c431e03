import socket
import sys

import pytest

from engine.parallel.network import find_interface, find_local_address, split_endpoint


@pytest.mark.parametrize("endpoint", ["node1:29500", "tcp://node1:29500"])
def test_an_endpoint_is_a_host_and_a_port(endpoint):
    assert split_endpoint(endpoint) == ("node1", 29500)


@pytest.mark.parametrize("endpoint", ["node1", "node1:", ":29500", "node1:http", "tcp://node1"])
def test_an_endpoint_without_both_is_refused(endpoint):
    with pytest.raises(ValueError, match=f"--dist-url {endpoint}: expected host:port of machine 0"):
        split_endpoint(endpoint)


def test_the_way_to_this_machine_is_its_own_address():
    assert find_local_address("127.0.0.1", 29500) == "127.0.0.1"


def test_a_machine_that_nobody_knows_is_named():
    with pytest.raises(ConnectionError, match=r"no way from here to machine 0 at no\.such\.host"):
        find_local_address("no.such.host.invalid", 29500)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only asked on Linux")
def test_an_address_belongs_to_an_interface():
    name = find_interface("127.0.0.1")
    assert name in {name for _, name in socket.if_nameindex()}
    assert find_interface("203.0.113.7") is None  # an address for examples
