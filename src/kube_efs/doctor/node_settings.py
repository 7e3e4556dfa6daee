"""The paths and addresses on a node, from the settings of its tunnel agent."""

from kube_efs.doctor.gathering.node import NodeCheckOptions
from kube_efs.settings.loading import load
from kube_efs.settings.tunnel import TunnelSettings

_DRIVER_PORT = 9812


def node_options(*, agent_url: str | None, driver_url: str | None) -> NodeCheckOptions:
    """The options; given addresses have priority. Raises InvalidSetting."""
    settings = load(TunnelSettings)
    expected = f"http://127.0.0.1:{_DRIVER_PORT}" if settings.tunnel_socket else None
    return NodeCheckOptions(
        name=settings.node_name,
        configuration=settings.stunnel_conf_path,
        agent_url=(agent_url or f"http://127.0.0.1:{settings.health_port}").rstrip("/"),
        driver_url=(driver_url or expected or "").rstrip("/") or None,
    )
