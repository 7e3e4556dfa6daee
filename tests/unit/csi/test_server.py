from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.csi.server import Endpoint, TcpEndpoint, UnixEndpoint, parse_endpoint
from kube_efs.model.errors import InvalidSetting


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        pytest.param("unix:/csi/csi.sock", UnixEndpoint(path=Path("/csi/csi.sock")), id="one slash"),
        pytest.param("unix:///csi/csi.sock", UnixEndpoint(path=Path("/csi/csi.sock")), id="three slashes"),
        pytest.param(
            "unix://tmp/csi.sock", UnixEndpoint(path=Path("/tmp/csi.sock")), id="host, as in the AWS driver"
        ),
        pytest.param("UNIX:/csi.sock", UnixEndpoint(path=Path("/csi.sock")), id="uppercase"),
        pytest.param(
            "unix:/a//b/../csi.sock", UnixEndpoint(path=Path("/a/csi.sock")), id="path to be normalized"
        ),
        pytest.param("tcp://127.0.0.1:10000", TcpEndpoint(host="127.0.0.1", port=10000), id="TCP"),
        pytest.param("tcp://localhost:0", TcpEndpoint(host="localhost", port=0), id="any free port"),
        pytest.param("tcp://[::1]:10000", TcpEndpoint(host="::1", port=10000), id="IPv6 address"),
    ],
)
def test_endpoint_is_parsed(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "is not a valid endpoint", id="nothing"),
        pytest.param("/csi/csi.sock", "is not a valid endpoint", id="bare path"),
        pytest.param("http://127.0.0.1:80", "is not a valid endpoint", id="another scheme"),
        pytest.param("tcp:127.0.0.1:80", "is not a valid endpoint", id="TCP without slashes"),
        pytest.param("unix:csi.sock", "has no absolute path to a socket", id="relative path"),
        pytest.param("unix:", "has no absolute path to a socket", id="no path"),
        pytest.param("unix:///", "has no absolute path to a socket", id="root"),
        pytest.param("unix:///a/..", "has no absolute path to a socket", id="root in another spelling"),
        pytest.param("unix:///csi/", "has no absolute path to a socket", id="directory"),
        pytest.param("unix:///c\0si", "has no absolute path to a socket", id="NUL byte"),
        pytest.param("unix:///" + "s" * 106, "has a path of more than 106 bytes", id="path above the limit"),
        pytest.param("tcp://127.0.0.1", "needs only a host and a port", id="no port"),
        pytest.param("tcp://:80", "needs only a host and a port", id="no host"),
        pytest.param("tcp://127.0.0.1:80/x", "needs only a host and a port", id="path after the port"),
        pytest.param("tcp://me@127.0.0.1:80", "needs only a host and a port", id="user"),
        pytest.param("tcp://127.0.0.1:70000", "Port out of range", id="invalid port"),
        pytest.param("tcp://0.0.0.0:80", "is reachable from other machines", id="all interfaces"),
        pytest.param("tcp://example.test:80", "is reachable from other machines", id="another machine"),
    ],
)
def test_invalid_endpoint_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem) as caught:
        parse_endpoint(text)
    assert (caught.value.field, caught.value.value) == ("CSI_ENDPOINT", text)
    assert "unix:///path/to/csi.sock" in caught.value.remedy


@given(st.text() | st.text().map("unix:/".__add__) | st.text().map("tcp://127".__add__))
def test_any_text_gives_an_endpoint_or_an_error(text: str) -> None:
    try:
        endpoint = parse_endpoint(text)
    except InvalidSetting:
        return
    assert parse_endpoint(str(endpoint)) == endpoint
