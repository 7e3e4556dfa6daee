"""The paths and addresses on a node, from the settings of its tunnel agent or its CSI driver."""

import os

from kube_efs.doctor.gathering.node import NodeCheckOptions
from kube_efs.settings.loading import load
from kube_efs.settings.node import NodeSettings
from kube_efs.settings.tunnel import TunnelSettings


def node_options(*, agent_url: str | None, driver_url: str | None) -> NodeCheckOptions:
    """The options; given addresses have priority. Raises InvalidSetting."""
    settings = load(TunnelSettings)
    agent_port, driver_port = settings.health_port, settings.driver_health_port
    if os.environ.get("CSI_ENDPOINT"):  # in the driver's pod, where the port of the same variable is its own
        agent_port, driver_port = load(TunnelSettings, {}).health_port, load(NodeSettings).health_port
    expected = f"http://127.0.0.1:{driver_port}" if settings.tunnel_socket else None
    return NodeCheckOptions(
        name=settings.node_name,
        configuration=settings.stunnel_conf_path,
        agent_url=(agent_url or f"http://127.0.0.1:{agent_port}").rstrip("/"),
        driver_url=(driver_url or expected or "").rstrip("/") or None,
    )
