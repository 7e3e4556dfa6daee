"""Where ``kube-efs doctor node`` finds the processes of its node, from the environment of a pod."""

import pytest

from kube_efs.doctor.node_settings import node_options

_SOCKET = {"KUBE_EFS_TUNNEL_SOCKET": "/run/kube-efs/tunnel.sock"}
_OF_DRIVER = {**_SOCKET, "CSI_ENDPOINT": "unix:///csi/csi.sock"}


@pytest.mark.parametrize(
    ("variables", "agent", "driver"),
    [
        pytest.param({}, 9811, None, id="agent without a driver"),
        pytest.param(_SOCKET, 9811, 9812, id="agent"),
        pytest.param(
            {**_SOCKET, "KUBE_EFS_DRIVER_HEALTH_PORT": "9809"}, 9811, 9809, id="agent with a driver"
        ),
        pytest.param({**_SOCKET, "KUBE_EFS_HEALTH_PORT": "9700"}, 9700, 9812, id="agent with another port"),
        pytest.param(_OF_DRIVER, 9811, 9812, id="driver"),
        pytest.param(
            {**_OF_DRIVER, "KUBE_EFS_HEALTH_PORT": "9809"}, 9811, 9809, id="driver with another port"
        ),
    ],
)
def test_ports_are_those_of_the_pods(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], agent: int, driver: int | None
) -> None:
    for name in ("CSI_ENDPOINT", "KUBE_EFS_HEALTH_PORT", "KUBE_EFS_TUNNEL_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    options = node_options(agent_url=None, driver_url=None)
    assert options.agent_url == f"http://127.0.0.1:{agent}"
    assert options.driver_url == (f"http://127.0.0.1:{driver}" if driver else None)


def test_given_addresses_have_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CSI_ENDPOINT", "unix:///csi/csi.sock")
    options = node_options(agent_url="http://a:1/", driver_url="http://b:2/")
    assert (options.agent_url, options.driver_url) == ("http://a:1", "http://b:2")
