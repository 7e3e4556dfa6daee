"""The settings of the tunnel agent of a node."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kube_efs.settings.base import AwsSettings, CommonSettings
from kube_efs.settings.fields import (
    count,
    matching,
    one_of,
    read_path,
    read_socket,
    read_true_or_false,
    seconds,
    setting,
    whole,
)


def _read_ports(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    ports = (_port(first), _port(last))
    if ports[0] > ports[1]:
        raise ValueError("is not a port range")
    return ports


_port = whole(1024, 65535)


def _read_directory(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute() or ".." in path.parts or path == Path("/"):
        raise ValueError("is not the path of a directory below /")
    return path


class DataPlaneSetting(StrEnum):
    """What encrypts the connections of new tunnels; ``AUTO`` is the kernel where it can."""

    AUTO = "auto"
    STUNNEL = "stunnel"
    KERNEL = "kernel"


@dataclass(frozen=True, kw_only=True)
class TunnelSettings(CommonSettings, AwsSettings):
    """The process ``kube-efs tunnel``."""

    health_port: int = count(
        "KUBE_EFS_HEALTH_PORT",
        9811,
        "Port of `/healthz`, `/readyz` and `/metrics`; 0 selects a free one.",
        least=0,
        most=65535,
    )
    driver_health_port: int = count(
        "KUBE_EFS_DRIVER_HEALTH_PORT",
        9812,
        "`KUBE_EFS_HEALTH_PORT` of the CSI driver of the node, for `kube-efs doctor node`.",
        least=1,
        most=65535,
    )
    data_plane: DataPlaneSetting = setting(
        "KUBE_EFS_DATA_PLANE",
        DataPlaneSetting.STUNNEL,
        "What encrypts the connections of tunnels: stunnel, the kernel of the node, or the kernel if it can"
        " (`auto`).",
        read=one_of(DataPlaneSetting),
        accepts="`auto`, `stunnel` or `kernel`",
    )
    stunnel_conf_path: Path = setting(
        "STUNNEL_CONF_PATH",
        Path("/tmp/stunnel.conf"),  # noqa: S108 — the older system's default; inside the pod
        "File for the configuration of the stunnel with the tunnels of the ConfigMap; the files of further"
        " stunnels are beside it.",
        read=read_path,
        accepts="a path in a writable directory",
    )
    stunnel_path: Path | None = setting(
        "STUNNEL_PATH",
        None,
        "The stunnel program.",
        read=read_path,
        accepts="the path of a program",
        shown="the first of `/usr/local/bin/stunnel`, `/usr/bin/stunnel`",
    )
    fips: bool | None = setting(
        "FIPS_ENABLED",
        None,
        "Whether stunnel is in FIPS mode, which needs a FIPS provider of OpenSSL.",
        read=read_true_or_false,
        accepts="true or false",
        shown="true if `AWS_USE_FIPS_ENDPOINT` is true or the node is in FIPS mode",
    )
    ca_file: Path | None = setting(
        "KUBE_EFS_CA_FILE",
        None,
        "Certificate authorities; one of them must have signed the certificates of mount targets.",
        read=read_path,
        accepts="the path of a PEM file",
        shown="`/etc/amazon/efs/efs-utils.crt`; in regions `eusc-*`, `eu-isoe-*`, `us-iso-*`, `us-isob-*` and"
        " `us-isof-*` the first of `/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem`,"
        " `/etc/ssl/certs/ca-certificates.crt`",
    )
    ca_directory: Path | None = setting(
        "KUBE_EFS_CA_DIRECTORY",
        None,
        "Directory with files of certificate authorities that volumes can name with the mount option"
        " `cafile`.",
        read=_read_directory,
        accepts="an absolute path without `..`",
        shown="none: the option is refused",
    )
    probe_interval_seconds: float = seconds(
        "KUBE_EFS_PROBE_INTERVAL_SECONDS",
        10,
        "Seconds between two checks of mount targets, tunnels and ports.",
        most=3600,
    )
    connect_timeout_seconds: float = seconds(
        "KUBE_EFS_CONNECT_TIMEOUT_SECONDS",
        2,
        "Seconds to wait for a connection to a mount target before another one is used.",
        most=60,
    )
    state_dir: Path | None = setting(
        "KUBE_EFS_STATE_DIR",
        None,
        "Directory for the state that the next agent on this node reads: targets, location of the node, "
        "tunnels on"
        " demand with their certificates, log of stunnel.",
        read=read_path,
        accepts="a writable directory",
        shown="that of `STUNNEL_CONF_PATH`",
    )
    tunnel_socket: Path | None = setting(
        "KUBE_EFS_TUNNEL_SOCKET",
        None,
        "Socket at which CSI mounts request tunnels. Without it, the only tunnels are those of the "
        "ConfigMap.",
        read=read_socket,
        accepts="an absolute path of at most 106 bytes",
        shown="none",
    )
    tunnel_ports: tuple[int, int] = setting(
        "KUBE_EFS_TUNNEL_PORTS",
        (22049, 23048),
        "Loopback ports of the tunnels for CSI mounts.",
        read=_read_ports,
        accepts="a range such as `22049-23048`",
        shown="`22049-23048`",
    )
    tunnel_idle_seconds: float = seconds(
        "KUBE_EFS_TUNNEL_IDLE_SECONDS",
        180,
        "Seconds without a mount or connection after which such a tunnel is closed.",
        least=10,
    )
    pod_identity_endpoint: str = setting(
        "KUBE_EFS_POD_IDENTITY_ENDPOINT",
        "http://169.254.170.23",
        "Address of the EKS Pod Identity Agent, for volumes that use the identity of their pods. In"
        " clusters with IPv6: `http://[fd00:ec2::23]`.",
        read=matching(r"https?://[^\s/]+", "is not a URL without a path"),
        accepts="an http or https URL without a path",
    )
