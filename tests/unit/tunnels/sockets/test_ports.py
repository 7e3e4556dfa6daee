"""Sockets of the kernel, and ports in use."""

import os
import select
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.errors import PortTaken
from kube_efs.tunnels.sockets import ports, sock_diag
from kube_efs.tunnels.sockets.ports import (
    count_connections,
    find_taken,
    is_in_use,
    listening_ports,
    open_connections,
    parse_nfs_servers,
    read_ports,
)
from kube_efs.tunnels.sockets.tcp_tables import TcpSocket, TcpState

_SECONDS = 30.0


@pytest.fixture(params=["sock_diag", "tables"], autouse=True)
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sources of the kernel, which give the same results."""
    monkeypatch.setattr(sock_diag, "is_available", lambda: request.param == "sock_diag")


@pytest.fixture
def listener() -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as stunnel's
    found.bind(("127.0.0.1", 0))
    found.listen()
    return found


def port_of(found: socket.socket) -> int:
    return int(found.getsockname()[1])


def wait_for_connection(listener: socket.socket) -> None:
    """On a busy machine, the kernel connects the server a moment after the client."""
    assert select.select([listener], [], [], _SECONDS)[0]


def wait_until_free(port: int) -> None:
    """On a busy machine, the kernel ends a connection a moment after both ends are closed."""
    deadline = time.monotonic() + _SECONDS
    while is_in_use(port):
        assert time.monotonic() < deadline


def connected(listener: socket.socket, client: socket.socket) -> socket.socket:
    """The end of the server."""
    client.connect(("127.0.0.1", port_of(listener)))
    wait_for_connection(listener)
    return listener.accept()[0]


def test_server_ports_of_kernel_mounts_are_parsed() -> None:
    table = "NV SERVER   PORT USE HOSTNAME\nv4 7f000001 5621   2 127.0.0.1\nv3 0a000001 801   1 10.0.0.1\n"
    assert parse_nfs_servers(table) == {22049, 2049}


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert isinstance(parse_nfs_servers(text), frozenset)


def test_one_reading_shows_listeners_and_connections(listener: socket.socket) -> None:
    port = port_of(listener)
    with listener, socket.socket() as client, connected(listener, client):
        found = read_ports([port])
        assert found is not None
        assert port in found.listening
        assert found.connections[port] == 1
        assert found.busy.issuperset({port, port_of(client)})


def test_socket_that_a_table_has_twice_is_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sock_diag, "is_available", lambda: False)
    listening = TcpSocket(local_port=22049, remote_port=0, state=TcpState.LISTEN, inode=1)
    open_one = TcpSocket(local_port=22049, remote_port=40000, state=TcpState.ESTABLISHED, inode=2)
    monkeypatch.setattr(ports, "read_tables", lambda: (listening, open_one, listening, open_one))
    found = read_ports([22049])
    assert found is not None
    assert found.connections[22049] == 1


def test_connections_that_wait_to_be_accepted_are_seen(listener: socket.socket) -> None:
    port = port_of(listener)
    with listener, socket.socket() as client:
        client.connect(("127.0.0.1", port))
        wait_for_connection(listener)
        found = read_ports([port])
        assert found is not None
        assert port in found.unanswered
        listener.accept()[0].close()
        found = read_ports([port])
        assert found is not None
        assert port not in found.unanswered


def test_reading_without_an_expected_listener_fails(listener: socket.socket) -> None:
    port = port_of(listener)
    listener.close()
    assert read_ports([port]) is None
    assert read_ports() is not None


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), ValueError("a table without its heading")])
def test_failed_reading_is_none(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> tuple[TcpSocket, ...]:
        raise error

    monkeypatch.setattr(ports, "_sockets", fail)
    assert read_ports() is None
    assert is_in_use(22049) is None


def test_server_port_of_a_kernel_mount_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = tmp_path / "servers"
    servers.write_text("NV SERVER   PORT USE HOSTNAME\nv4 7f000001 5621   2 127.0.0.1\n")
    monkeypatch.setattr(ports, "_NFS_SERVERS", servers)
    found = read_ports()
    assert found is not None
    assert 22049 in found.busy
    assert is_in_use(22049)
    assert not is_in_use(22048)


def test_table_of_mounts_that_disappears_is_a_reading_without_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "_NFS_SERVERS", tmp_path / "servers")
    monkeypatch.setattr(Path, "exists", lambda _: True)  # as it was a moment before
    assert read_ports() is not None
    assert is_in_use(1) is False


def test_listener_and_both_ends_of_a_connection_are_in_use(listener: socket.socket) -> None:
    port = port_of(listener)
    assert is_in_use(port)
    with listener, socket.socket() as client, connected(listener, client):
        listener.close()
        assert is_in_use(port)
        assert is_in_use(port_of(client))
    wait_until_free(port)


def test_open_connections_are_counted_by_port(listener: socket.socket) -> None:
    port = port_of(listener)
    with listener, socket.socket() as first, socket.socket() as second:
        assert open_connections()[port] == 0
        with connected(listener, first), connected(listener, second) as end:
            assert open_connections()[port] == 2
            second.close()
            assert end.recv(1) == b""
            assert open_connections()[port] == 1


def test_connections_of_a_process_are_counted(listener: socket.socket) -> None:
    before = count_connections(os.getpid())
    with listener, socket.socket() as client:
        client.connect(("127.0.0.1", port_of(listener)))
        assert count_connections(os.getpid()) == before + 1  # the other end is not accepted yet
        wait_for_connection(listener)
        accepted, _ = listener.accept()
        with accepted:
            assert count_connections(os.getpid()) == before + 2
    assert count_connections(os.getpid()) == before


def test_ports_of_a_process_are_found(listener: socket.socket) -> None:
    port = port_of(listener)
    with listener:
        assert port in listening_ports(os.getpid())
    assert port not in listening_ports(os.getpid())


def test_ports_of_a_process_are_sorted_by_descriptor(listener: socket.socket) -> None:
    with listener, socket.create_connection(("127.0.0.1", port_of(listener))), socket.socket() as second:
        second.bind(("127.0.0.1", 0))
        second.listen()
        ours = [port for port in listening_ports(os.getpid()) if port in map(port_of, (listener, second))]
        by_descriptor = sorted((listener, second), key=socket.socket.fileno)
        assert ours == [port_of(one) for one in by_descriptor]


def test_ended_process_listens_on_no_port() -> None:
    assert listening_ports(2**22 + 1) == ()


def test_taken_port_is_named_with_its_holder(listener: socket.socket) -> None:
    with listener, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        free = port_of(other)
        other.close()
        taken = find_taken([port_of(listener), free])
        assert set(taken) == {port_of(listener)}
        name = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
        assert type(taken[port_of(listener)]) is PortTaken
        assert str(taken[port_of(listener)]) == (
            f"stunnel_port: {port_of(listener)} is taken by {name} (pid {os.getpid()});"
            " stop that program or let it use another port; it is retried"
        )


def test_own_listening_port_does_not_count_as_taken(listener: socket.socket) -> None:
    with listener:
        assert find_taken([port_of(listener)], except_by=os.getpid()) == {}
        assert set(find_taken([port_of(listener)], except_by=1)) == {port_of(listener)}


def test_listener_on_all_addresses_takes_the_port() -> None:
    with socket.socket() as everywhere:
        everywhere.bind(("0.0.0.0", 0))
        everywhere.listen()
        assert set(find_taken([port_of(everywhere)])) == {port_of(everywhere)}


def test_connections_in_time_wait_do_not_take_a_port(listener: socket.socket) -> None:
    port = port_of(listener)
    with socket.socket() as client:
        connected(listener, client).close()  # this side waits in TIME_WAIT
        listener.close()
        assert client.recv(1) == b""
    assert find_taken([port]) == {}
