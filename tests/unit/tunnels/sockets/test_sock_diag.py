"""Sockets from sock_diag, compared with the kernel's tables."""

import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kube_efs.tunnels.sockets import sock_diag
from kube_efs.tunnels.sockets.tcp_tables import TcpSocket, TcpState, read_tables

HOSTS = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
_SECONDS = 30.0


@pytest.fixture(params=HOSTS, ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> socket.AddressFamily:
    found: socket.AddressFamily = request.param
    return found


@pytest.fixture
def sockets(family: socket.AddressFamily) -> Iterator[tuple[socket.socket, ...]]:
    """A listener with an accepted connection of a client, and one that is not accepted."""
    with ExitStack() as stack:
        listener, client, waiting = (stack.enter_context(socket.socket(family)) for _ in range(3))
        listener.bind((HOSTS[family], 0))
        listener.listen()
        client.connect(listener.getsockname())
        accepted = stack.enter_context(listener.accept()[0])
        waiting.connect(listener.getsockname())
        # On a busy machine, the kernel connects the server a moment after the client.
        assert select.select([listener], [], [], _SECONDS)[0]
        yield listener, client, accepted


def _ours(found: tuple[TcpSocket, ...], sockets: tuple[socket.socket, ...]) -> list[TcpSocket]:
    inodes = [os.fstat(one.fileno()).st_ino for one in sockets]
    return sorted((one for one in found if one.inode in inodes), key=lambda one: inodes.index(one.inode))


def test_sock_diag_returns_the_same_sockets_as_the_tables(sockets: tuple[socket.socket, ...]) -> None:
    asked = _ours(sock_diag.ask(frozenset(TcpState)), sockets)
    assert asked == _ours(read_tables(), sockets)
    listener, client, accepted = asked
    assert (listener.state, client.state, accepted.state) == (
        TcpState.LISTEN,
        TcpState.ESTABLISHED,
        TcpState.ESTABLISHED,
    )
    assert listener.queued == 1
    assert client.remote_port == accepted.local_port == listener.local_port
    assert client.local_port == accepted.remote_port


def test_only_sockets_of_the_requested_port_are_returned(sockets: tuple[socket.socket, ...]) -> None:
    port, of_client = (one.getsockname()[1] for one in sockets[:2])
    every = sock_diag.ask(frozenset(TcpState))
    assert len(every) > len(sockets)
    for asked in (port, of_client):
        found = sock_diag.ask(frozenset(TcpState), asked)
        assert set(found) == {one for one in every if asked in (one.local_port, one.remote_port)}
        assert len(_ours(found, sockets)) == (3 if asked == port else 2)
    assert sock_diag.ask({TcpState.LISTEN}, of_client) == ()


@pytest.mark.parametrize(
    ("states", "told"), [({TcpState.LISTEN}, 1), ({TcpState.ESTABLISHED}, 2), ({TcpState.SYN_SENT}, 0)]
)
def test_only_sockets_in_the_requested_states_are_returned(
    states: set[TcpState], told: int, sockets: tuple[socket.socket, ...]
) -> None:
    found = sock_diag.ask(states)
    assert {one.state for one in found} <= states
    assert len(_ours(found, sockets)) == told


def test_all_sockets_are_returned_if_they_need_several_answers() -> None:
    with ExitStack() as stack:
        many = tuple(stack.enter_context(socket.socket()) for _ in range(600))
        for one in many:
            one.bind((HOSTS[socket.AF_INET], 0))
            one.listen()
        found = sock_diag.ask({TcpState.LISTEN})
        assert [one.local_port for one in _ours(found, many)] == [one.getsockname()[1] for one in many]


def test_flows_have_the_bytes_in_both_directions() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((HOSTS[socket.AF_INET], 0)))
        client = stack.enter_context(socket.create_connection(listener.getsockname()))
        accepted = stack.enter_context(listener.accept()[0])
        client.sendall(b"a" * 100)
        assert accepted.recv(100, socket.MSG_WAITALL)
        accepted.sendall(b"b" * 7)
        assert client.recv(7, socket.MSG_WAITALL)
        port, client_port = listener.getsockname()[1], client.getsockname()[1]

        def flow() -> sock_diag.Flow:
            [found] = [one for one in sock_diag.ask_flows() if one.local_port == port]
            return found

        # The last bytes are acknowledged a little later.
        deadline = time.monotonic() + _SECONDS
        while flow().sent_bytes < 7:
            assert time.monotonic() < deadline
        found = flow()
        assert (found.remote_port, found.sent_bytes, found.received_bytes) == (client_port, 7, 100)
        assert 0 <= found.seconds_ago <= _SECONDS


def test_kernel_without_support_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sock_diag, "_SOCK_DIAG_BY_FAMILY", 99)
    with pytest.raises(OSError, match="Invalid argument"):
        sock_diag.ask({TcpState.LISTEN})


@pytest.fixture
def not_known_yet() -> Iterator[None]:
    sock_diag.is_available.cache_clear()
    yield
    sock_diag.is_available.cache_clear()


def test_availability_is_tested_once(not_known_yet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def refusing(states: object, port: int) -> tuple[TcpSocket, ...]:
        asked.append(states)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(sock_diag, "ask", refusing)
    assert [sock_diag.is_available(), sock_diag.is_available()] == [False, False]
    assert len(asked) == 1


def test_sock_diag_is_available_on_this_kernel(not_known_yet: None) -> None:
    assert sock_diag.is_available()
