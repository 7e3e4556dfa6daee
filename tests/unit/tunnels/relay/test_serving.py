import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.tunnels.relay.test_splicing import DEADLINE_SECONDS, connected_pair

from kube_efs.tunnels.relay import serving, splicing
from kube_efs.tunnels.relay.mount_target import Destination, Negotiated
from kube_efs.tunnels.relay.serving import Acceptor, Refused, Relay, parse_destination

DOCUMENT: dict[str, object] = {
    "name": "fs-0123456789abcdef0",
    "file_system_id": "fs-0123456789abcdef0",
    "port": 20490,
    "addresses": ["10.0.0.1", "10.0.0.2"],
    "check_host": "fs-0123456789abcdef0.efs.us-east-1.amazonaws.com",
    "ca_file": "/etc/ca.pem",
    "certificate": {"path": "/state/client.pem", "serial": 1, "not_after": "2030-01-01T00:00:00+00:00"},
    "connect_timeout_seconds": 2.0,
}


def test_destination_has_what_connections_need() -> None:
    assert parse_destination(DOCUMENT) == Destination(
        addresses=("10.0.0.1", "10.0.0.2"),
        check_host="fs-0123456789abcdef0.efs.us-east-1.amazonaws.com",
        ca_file="/etc/ca.pem",
        certificate="/state/client.pem",
        connect_timeout_seconds=2.0,
    )


def test_destination_without_client_certificate() -> None:
    assert parse_destination(DOCUMENT | {"certificate": None}).certificate is None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"name": ""}, id="no name"),
        pytest.param({"name": 1}, id="name is a number"),
        pytest.param({"port": 1023}, id="privileged port"),
        pytest.param({"port": 65536}, id="port too large"),
        pytest.param({"port": "20490"}, id="port is a text"),
        pytest.param({"addresses": []}, id="no address"),
        pytest.param({"addresses": [""]}, id="empty address"),
        pytest.param({"addresses": [None]}, id="address is null"),
        pytest.param({"addresses": "10.0.0.1"}, id="addresses are a text"),
        pytest.param({"check_host": None}, id="no host name"),
        pytest.param({"ca_file": 3}, id="authorities are a number, which would be a descriptor"),
        pytest.param({"certificate": "/state/client.pem"}, id="certificate is a text"),
        pytest.param({"certificate": {"path": 3}}, id="path is a number"),
        pytest.param({"connect_timeout_seconds": 0}, id="no time"),
        pytest.param({"connect_timeout_seconds": float("nan")}, id="time is not a number"),
        pytest.param({"connect_timeout_seconds": float("inf")}, id="endless time"),
    ],
)
def test_description_with_a_value_of_the_wrong_type_or_size_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(Refused, match="description of the service is not valid") as refused:
        parse_destination(DOCUMENT | change)

    assert refused.value.kind == "invalid"


@pytest.mark.parametrize("missing", sorted(set(DOCUMENT) - {"file_system_id"}))
def test_description_with_a_missing_value_is_refused(missing: str) -> None:
    with pytest.raises(Refused):
        parse_destination({name: value for name, value in DOCUMENT.items() if name != missing})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_client_is_refused_if_no_thread_can_start_and_the_next_one_is_served(tmp_path: Path) -> None:
    port = free_port()
    relay = Relay(1)
    relay.add(DOCUMENT | {"port": port, "ca_file": str(tmp_path / "missing.pem")})
    relay.acceptor.start()

    before = threading.stack_size(1 << 50)
    try:
        assert _reason_after_a_client(relay, port) == "can't start new thread"
    finally:
        threading.stack_size(before)

    assert "missing.pem: no such file" in _reason_after_a_client(relay, port)


def test_client_in_the_queue_of_an_earlier_relay_is_reset_if_it_is_refused(tmp_path: Path) -> None:
    port = free_port()
    listener = socket.create_server(("127.0.0.1", port))
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS) as client:
        relay = Relay(1)
        missing = str(tmp_path / "missing.pem")
        relay.resume({"service": DOCUMENT | {"port": port, "ca_file": missing}}, listener)
        relay.acceptor.start()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_connection_that_ends_after_its_handshake_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, mount_target = connected_pair()
    monkeypatch.setattr(serving, "connect", lambda _: (stream, Negotiated()))
    monkeypatch.setattr(splicing, "_PIPE_BYTES", 1 << 30)  # no pipe is so large
    relay, port = Relay(1), free_port()
    relay.add(DOCUMENT | {"port": port})
    [service] = relay.services.values()
    relay.acceptor.start()

    with mount_target:
        _reason_after_a_client(relay, port)
    relay.leave()
    relay.acceptor.drain()
    assert "the node has too many pipes" in str(service.state()["reason"])


def test_listener_with_an_error_that_stays_is_read_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused, may_continue = threading.Event(), threading.Event()

    def sleep(_: float) -> None:
        paused.set()
        may_continue.wait(DEADLINE_SECONDS)

    monkeypatch.setattr(serving, "time", SimpleNamespace(sleep=sleep))
    acceptor, listener = Acceptor(1), socket.create_server(("127.0.0.1", 0))
    acceptor.add(listener, lambda client, _: client.close())
    listener.shutdown(socket.SHUT_RDWR)  # as with ``ss --kill``
    acceptor.start()

    assert paused.wait(DEADLINE_SECONDS)
    acceptor.remove(listener)
    may_continue.set()


def _reason_after_a_client(relay: Relay, port: int) -> str:
    # The reset may come before the connection is known here.
    with (
        pytest.raises(ConnectionResetError),
        socket.create_connection(("127.0.0.1", port), timeout=60) as client,
    ):
        client.recv(1)
    [state] = relay.state()
    return str(state["reason"])
