"""Base ports for tunnels: each embedded cluster has its own."""

import socket
from pathlib import Path

import pytest
from tests.integration.on_demand_options import on_demand_options

from fake_efs.errors import PlatformError
from kube_efs_lab.programs import reserved_base_port


@pytest.fixture
def free_ports() -> tuple[int, int]:
    """Two ports that neither other processes of tests nor embedded clusters look for.

    An earlier process of tests had the same hundred, and the kernel keeps the ports of its last connections
    for a minute.
    """
    ports = on_demand_options(Path("/nowhere")).ports
    one, other, *_ = filter(_is_unused, range(ports.first + 1, ports.last, 2))
    return one, other


def _is_unused(port: int) -> bool:
    with socket.socket() as before, socket.socket() as itself:
        try:
            before.bind(("127.0.0.1", port - 1))
            itself.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def test_two_clusters_get_different_ports(free_ports: tuple[int, int]) -> None:
    with reserved_base_port(free_ports) as one, reserved_base_port(free_ports) as other:
        assert (one, other) == free_ports


def test_a_port_is_free_again_afterwards(free_ports: tuple[int, int]) -> None:
    with reserved_base_port(free_ports):
        pass
    with reserved_base_port(free_ports) as port:
        assert port == free_ports[0]


def test_the_base_port_itself_is_left_to_the_tunnel(free_ports: tuple[int, int]) -> None:
    with reserved_base_port(free_ports) as port, socket.create_server(("127.0.0.1", port)) as server:
        assert server.getsockname()[1] == port


def test_a_port_that_a_program_listens_on_is_passed_over(free_ports: tuple[int, int]) -> None:
    with socket.create_server(("127.0.0.1", free_ports[0])), reserved_base_port(free_ports) as port:
        assert port == free_ports[1]


def test_no_free_port_is_said(free_ports: tuple[int, int]) -> None:
    first = free_ports[0]
    with reserved_base_port([first]), pytest.raises(PlatformError, match="stop other embedded clusters"):
        reserved_base_port([first]).__enter__()
