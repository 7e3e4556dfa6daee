"""The settings of the operator."""

from dataclasses import dataclass

from kube_efs.model.efs.ids import Region, parse_region
from kube_efs.settings.base import CommonSettings, own_image
from kube_efs.settings.fields import (
    count,
    found,
    matching,
    read_dns_name,
    read_true_or_false,
    seconds,
    setting,
    switch,
)
from kube_efs.settings.installed import InstalledSettings

_IMAGE = r"[A-Za-z0-9][\w.:/@-]*"
_CLUSTER_ID = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"


@dataclass(frozen=True, kw_only=True)
class OperatorSettings(InstalledSettings, CommonSettings):
    """The process ``kube-efs operator``."""

    health_port: int = count(
        "KUBE_EFS_HEALTH_PORT",
        9813,
        "Port of `/healthz`, `/readyz` and `/metrics`; 0 selects a free one.",
        least=0,
        most=65535,
    )
    image: str = found(
        "KUBE_EFS_IMAGE",
        own_image,
        "Image of the installed processes.",
        read=matching(_IMAGE, "is not a valid image name"),
        accepts="an image's name",
        shown="this version's",
    )
    operator_name: str = setting(
        "OPERATOR_NAME",
        "kube-efs-operator",
        "Deployment of this process, which gets its events and owns its alerts.",
        read=read_dns_name,
        accepts="a Deployment's name",
    )
    region: Region | None = setting(
        "AWS_REGION",
        None,
        "Region of the file systems.",
        read=parse_region,
        accepts="a name such as `us-east-1`",
        shown="each node's own",
    )
    uses_fips_endpoints: bool = switch(
        "AWS_USE_FIPS_ENDPOINT",
        False,
        "Whether the installed processes use FIPS endpoints of AWS, and the tunnels FIPS mode.",
        read=read_true_or_false,
    )
    cluster_id: str | None = setting(
        "KUBE_EFS_CLUSTER_ID",
        None,
        "ID of the cluster, in the tag that marks its access points as owned.",
        read=matching(_CLUSTER_ID, "is not a valid cluster ID"),
        accepts="letters, digits, `-`, `_` and `.`",
        shown="OpenShift's infrastructure name",
    )
    role_arn: str | None = setting(
        "ROLEARN",
        None,
        "Role for which OpenShift creates short-lived credentials.",
        read=matching(r"arn:[\w:/+=,.@-]+", "is not an ARN"),
        accepts="the ARN of a role",
        shown="none",
    )
    kubelet_folder: str = setting(
        "KUBE_EFS_KUBELET_FOLDER",
        "/var/lib/kubelet",
        "The kubelets' `--root-dir`.",
        read=matching(r"(/[\w.-]+)+", "is not an absolute path"),
        accepts="an absolute path",
    )
    csi_only: bool = switch(
        "KUBE_EFS_CSI_ONLY",
        False,
        "Whether only the CSI driver is installed, without tunnel volumes and their StorageClass.",
    )
    resync_seconds: float = seconds(
        "KUBE_EFS_RESYNC_SECONDS",
        60,
        "Seconds between two complete comparisons when no change is reported.",
        most=3600,
    )
    leader_election: bool = switch(
        "KUBE_EFS_LEADER_ELECTION",
        True,
        "Whether only the holder of the Lease `kube-efs-operator` is active.",
    )
