"""What the tunnels of a node are told."""

from pathlib import Path

from kube_efs.settings.base import AwsSettings, CommonSettings
from kube_efs.settings.fields import count, seconds, setting


class TunnelSettings(CommonSettings, AwsSettings):
    """The process ``kube-efs tunnel``."""

    health_port: int = count(
        "KUBE_EFS_HEALTH_PORT",
        9811,
        "Port of `/healthz`, `/readyz` and `/metrics`; 0 takes a free one.",
        least=0,
        most=65535,
    )
    stunnel_conf_path: Path = setting(
        "STUNNEL_CONF_PATH",
        Path("/tmp/stunnel.conf"),  # noqa: S108 — the older system's default; inside the pod
        "File that stunnel's configuration is written to.",
        accepts="a path in a folder that can be written",
    )
    stunnel_path: Path | None = setting(
        "STUNNEL_PATH",
        None,
        "The stunnel program.",
        accepts="the path of a program",
        shown="the first of `/usr/local/bin/stunnel`, `/usr/bin/stunnel`",
    )
    ca_file: Path = setting(
        "KUBE_EFS_CA_FILE",
        Path("/etc/amazon/efs/efs-utils.crt"),
        "Certificate authorities, one of which must have signed a mount target's certificate.",
        accepts="the path of a PEM file",
    )
    probe_interval_seconds: float = seconds(
        "KUBE_EFS_PROBE_INTERVAL_SECONDS", 10, "Seconds between two probes of each tunnel.", most=3600
    )
    connect_timeout_seconds: float = seconds(
        "KUBE_EFS_CONNECT_TIMEOUT_SECONDS",
        2,
        "Seconds that a mount target has to accept a connection before another is tried.",
        most=60,
    )
