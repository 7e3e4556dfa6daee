"""Ports for servers that start later."""

import errno
import socket
import subprocess
import sys

import pytest

from tinykube import ports
from tinykube.ports import free_port


def test_a_server_that_names_the_port_gets_it_and_gets_it_again() -> None:
    port = free_port()
    for _ in range(2):
        with (
            socket.create_server(("127.0.0.1", port)),
            socket.create_connection(("127.0.0.1", port)) as client,
        ):
            client.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_the_port_is_nobody_elses_meanwhile() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="already in use") as caught:
        other.bind(("127.0.0.1", port))  # as the kernel looks for a free one
    assert caught.value.errno == errno.EADDRINUSE


def test_the_oldest_ports_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_MOST", len(ports._held) + 1)
    before = len(ports._held)
    for _ in range(3):
        free_port()
    assert len(ports._held) == before + 1


def test_process_ends_without_warnings() -> None:
    code = "from tinykube.ports import free_port; free_port()"
    command = [sys.executable, "-W", "error", "-c", code]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=True)
    assert ended.stderr == ""
