"""The spellings of mounts from the node's loopback."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.loopback import is_loopback, ports_of


@pytest.mark.parametrize(
    "server",
    [
        "127.0.0.1",
        "127.0.0.2",
        "127.255.255.254",
        "127.1",
        "127.0.1",
        "127.000.000.001",
        "0177.0.0.1",
        "0x7f.0.0.1",
        "0x7f000001",
        "2130706433",
        "017700000001",
        "0.0.0.0",
        "0",
        "::1",
        "[::1]",
        "0:0:0:0:0:0:0:1",
        "::ffff:127.0.0.1",
        "::",
        "::1%lo",
        "localhost",
        "LocalHost",
        "localhost.",
        "localhost.localdomain",
        "localhost6",
        "ip6-localhost",
        "ip6-loopback",
        "tunnel.localhost",
        " 127.0.0.1 ",
    ],
)
def test_loopback_servers_are_recognized(server: str) -> None:
    assert is_loopback(server)


@pytest.mark.parametrize(
    "server",
    [
        "",
        "10.0.0.4",
        "128.0.0.1",
        "126.1",
        "2049",
        "127.0.0.0.1",
        "127.x",
        "09.0.0.1",
        "fd00::4",
        "::ffff:10.0.0.4",
        "fs-1.efs.us-east-1.amazonaws.com",
        "localhost.example.com",
        "notlocalhost",
        "9" * 5000,
    ],
)
def test_other_servers_are_not_loopback(server: str) -> None:
    assert not is_loopback(server)


@pytest.mark.parametrize(
    ("options", "ports"),
    [
        pytest.param((), (), id="none"),
        pytest.param(("hard", "port=20490"), (20490,), id="among other options"),
        pytest.param(("hard,port=20490,ro",), (20490,), id="in one entry with others"),
        pytest.param(("port=20490", "mountport=20491"), (20490, 20491), id="of the mount protocol"),
        pytest.param(("port=20490", "port=20491"), (20490, 20491), id="twice"),
        pytest.param(("port=0x500a",), (20490,), id="hexadecimal"),
        pytest.param(("port=050012",), (20490,), id="octal"),
        pytest.param(("port=+20490",), (20490,), id="with a sign"),
        pytest.param(("port=0", "port=65536", "port=-1", "port=089", "port=²"), (), id="no ports"),
        pytest.param(("report=20490", "clientport=1", "port"), (), id="other options"),
    ],
)
def test_ports_are_read_from_mount_options(options: tuple[str, ...], ports: tuple[int, ...]) -> None:
    assert ports_of(options) == ports


@given(st.text(), st.lists(st.text()))
def test_any_text_is_read_without_an_error(server: str, options: list[str]) -> None:
    is_loopback(server)
    assert all(0 < port < 65536 for port in ports_of(["port=" + one for one in options]))
