import resource
import socket

import pytest

from engine.parallel.sockets import OTHER_FILES, allow_connections, end_connections, open_sockets


@pytest.fixture
def connection():
    """Both ends of a connection, and the port that one of them listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            near.settimeout(10)
            yield near, far, server.getsockname()[1]


def test_a_connection_that_is_ended_is_seen_on_the_other_side(connection):
    near, far, _ = connection
    end_connections({one for one in open_sockets() if one[0] == far.fileno()}, except_port=0)
    assert near.recv(1) == b""


def test_connections_to_a_port_are_left_open(connection):
    near, far, port = connection
    end_connections({one for one in open_sockets() if one[0] == far.fileno()}, except_port=port)
    far.sendall(b"x")
    assert near.recv(1) == b"x"


def test_a_number_that_stands_for_another_socket_now_is_let_be(connection):
    near, far, _ = connection
    end_connections({(far.fileno(), 1)}, except_port=0)
    far.sendall(b"x")
    assert near.recv(1) == b"x"


def test_sockets_that_are_no_connections_are_let_be():
    before = open_sockets()
    near, far = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server, near, far:
        end_connections(open_sockets() - before, except_port=0)
        far.sendall(b"x")
        assert near.recv(1) == b"x"
        socket.create_connection(server.getsockname()).close()


def test_a_socket_that_is_closed_meanwhile_is_passed_over(monkeypatch):
    first, second = socket.socketpair()
    open_ones = {one for one in open_sockets() if one[0] in (first.fileno(), second.fileno())}
    for one in (first, second):
        one.close()
    monkeypatch.setattr("engine.parallel.sockets.open_sockets", lambda: open_ones)
    end_connections(open_ones, except_port=0)


@pytest.fixture
def file_limit():
    """A limit of 1,024 open files, and what it is after something was called."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(("connections", "limit"), [(100, 1024), (3 * 512, 3 * 512 + OTHER_FILES)])
def test_the_limit_of_open_files_is_raised_where_connections_need_it(
    file_limit, connections, limit, caplog
):
    allow_connections(connections)
    assert file_limit() == limit
    assert not caplog.records


def test_a_limit_that_cannot_be_raised_is_told(file_limit, caplog):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    allow_connections(most)
    assert file_limit() == most
    assert f"may have {most} files open, but its connections" in caplog.text
