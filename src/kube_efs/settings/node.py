"""The settings of the CSI driver of a node."""

from dataclasses import dataclass
from pathlib import Path

from kube_efs.settings.base import AwsSettings, CommonSettings
from kube_efs.settings.fields import count, read_path, read_socket, seconds, setting, switch


@dataclass(frozen=True, kw_only=True)
class NodeSettings(CommonSettings, AwsSettings):
    """The process ``kube-efs node``."""

    health_port: int = count(
        "KUBE_EFS_HEALTH_PORT",
        9812,
        "Port of `/healthz`, `/readyz` and `/metrics`; 0 selects a free one.",
        least=0,
        most=65535,
    )
    csi_endpoint: str = setting(
        "CSI_ENDPOINT",
        "unix:///csi/csi.sock",
        "Endpoint for the kubelet's calls.",
        read=str,
        accepts="`unix:///path` or `tcp://127.0.0.1:port`",
    )
    kubelet_socket: Path = setting(
        "DRIVER_REG_SOCK_PATH",
        Path("/var/lib/kubelet/plugins/efs.csi.aws.com/csi.sock"),
        "The path of the same socket on the host.",
        read=read_socket,
        accepts="an absolute path of at most 106 bytes",
    )
    registration_folder: Path | None = setting(
        "KUBE_EFS_REGISTRATION_FOLDER",
        None,
        "The kubelet's directory `plugins_registry`, in which the driver registers itself.",
        read=read_path,
        accepts="a writable directory",
        shown="none: node-driver-registrar registers the driver",
    )
    tunnel_socket: Path = setting(
        "KUBE_EFS_TUNNEL_SOCKET",
        Path("/run/kube-efs/tunnel.sock"),
        "Socket of this node's tunnel agent.",
        read=read_socket,
        accepts="an absolute path of at most 106 bytes",
    )
    mount_timeout_seconds: float = seconds(
        "KUBE_EFS_MOUNT_TIMEOUT_SECONDS",
        110,
        "Timeout in seconds for mounting or unmounting a volume; less if the caller's deadline is shorter.",
        least=1,
        most=3600,
    )
    unmount_timeout_seconds: float = seconds(
        "KUBE_EFS_UNMOUNT_TIMEOUT_SECONDS",
        30,
        "Timeout in seconds of one call of umount.",
        least=1,
        most=3600,
    )
    force_unmount: bool = switch(
        "KUBE_EFS_FORCE_UNMOUNT_AFTER_TIMEOUT",
        False,
        "Whether to force the unmount after that timeout, at the latest after half of"
        " `KUBE_EFS_MOUNT_TIMEOUT_SECONDS`. Data that is not yet written is lost.",
    )
    attach_limit: int = count(
        "KUBE_EFS_VOLUME_ATTACH_LIMIT",
        0,
        "Maximum number of volumes that Kubernetes places on this node; 0 sets no limit.",
        least=0,
        most=100_000,
    )
    max_inflight_mounts: int = count(
        "KUBE_EFS_MAX_INFLIGHT_MOUNTS",
        0,
        "Maximum number of concurrent mounts; further ones are retried; 0 sets no limit.",
        least=0,
        most=100_000,
    )
    has_volume_metrics: bool = switch(
        "KUBE_EFS_VOLUME_METRICS",
        False,
        "Whether the kubelet gets the usage and condition of volumes.",
    )
    volume_metrics_refresh_seconds: float = seconds(
        "KUBE_EFS_VOLUME_METRICS_REFRESH_SECONDS",
        300,
        "Seconds after which the usage of the file system is read again.",
        least=1,
        most=7 * 86400,
    )
    counts_files: bool = switch(
        "KUBE_EFS_VOLUME_METRICS_COUNT_FILES",
        False,
        "Whether the used bytes of a volume are those of its files, counted in the background, instead of"
        " those of the complete file system.",
    )
    file_count_refresh_seconds: float = seconds(
        "KUBE_EFS_VOLUME_METRICS_COUNT_REFRESH_SECONDS",
        14400,
        "Seconds after which the files of a volume are counted again.",
        least=1,
        most=7 * 86400,
    )
    file_count_rate_limit: int = count(
        "KUBE_EFS_VOLUME_METRICS_COUNT_RATE_LIMIT",
        5,
        "Maximum number of volumes of a file system whose files this node counts at the same time.",
        least=1,
        most=1000,
    )
    removes_startup_taint: bool = switch(
        "KUBE_EFS_REMOVE_STARTUP_TAINT",
        True,
        "Whether the taint `efs.csi.aws.com/agent-not-ready` is removed from this node.",
    )
