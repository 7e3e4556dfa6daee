"""The settings of the operator."""

from typing import Annotated

from kube_efs.model.efs.ids import Region, parse_region
from kube_efs.settings.base import CommonSettings, own_image
from kube_efs.settings.fields import DnsName, TrueOrFalse, count, matching, parsed, seconds, setting
from kube_efs.settings.installed import InstalledSettings

_IMAGE = r"[A-Za-z0-9][\w.:/@-]*"
_CLUSTER_ID = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"


class OperatorSettings(InstalledSettings, CommonSettings):
    """The process ``kube-efs operator``."""

    health_port: int = count(
        "KUBE_EFS_HEALTH_PORT",
        9813,
        "Port of `/healthz`, `/readyz` and `/metrics`; 0 selects a free one.",
        least=0,
        most=65535,
    )
    image: Annotated[str, matching(_IMAGE, "is not a valid image name")] = setting(
        "KUBE_EFS_IMAGE",
        own_image,
        "Image of the installed processes.",
        accepts="an image's name",
        shown="this version's",
    )
    operator_name: DnsName = setting(
        "OPERATOR_NAME",
        "kube-efs-operator",
        "Deployment of this process, which gets its events and owns its alerts.",
        accepts="a Deployment's name",
    )
    region: Annotated[Region, parsed(parse_region)] | None = setting(
        "AWS_REGION",
        None,
        "Region of the file systems.",
        accepts="a name such as `us-east-1`",
        shown="each node's own",
    )
    uses_fips_endpoints: TrueOrFalse = setting(
        "AWS_USE_FIPS_ENDPOINT",
        False,
        "Whether the installed processes use FIPS endpoints of AWS, and the tunnels FIPS mode.",
        accepts="true or false",
        shown="`false`",
    )
    cluster_id: Annotated[str, matching(_CLUSTER_ID, "is not a valid cluster ID")] | None = setting(
        "KUBE_EFS_CLUSTER_ID",
        None,
        "ID of the cluster, in the tag that marks its access points as owned.",
        accepts="letters, digits, `-`, `_` and `.`",
        shown="OpenShift's infrastructure name",
    )
    role_arn: Annotated[str, matching(r"arn:[\w:/+=,.@-]+", "is not an ARN")] | None = setting(
        "ROLEARN",
        None,
        "Role for which OpenShift creates short-lived credentials.",
        accepts="the ARN of a role",
        shown="none",
    )
    kubelet_folder: Annotated[str, matching(r"(/[\w.-]+)+", "is not an absolute path")] = setting(
        "KUBE_EFS_KUBELET_FOLDER",
        "/var/lib/kubelet",
        "The kubelets' `--root-dir`.",
        accepts="an absolute path",
    )
    csi_only: bool = setting(
        "KUBE_EFS_CSI_ONLY",
        False,
        "Whether only the CSI driver is installed, without tunnel volumes and their StorageClass.",
        accepts="true or false",
        shown="`false`",
    )
    resync_seconds: float = seconds(
        "KUBE_EFS_RESYNC_SECONDS",
        60,
        "Seconds between two complete comparisons when no change is reported.",
        most=3600,
    )
    leader_election: bool = setting(
        "KUBE_EFS_LEADER_ELECTION",
        True,
        "Whether only the holder of the Lease `kube-efs-operator` is active.",
        accepts="true or false",
        shown="`true`",
    )
