"""The controller's settings for volumes of the CSI driver."""

from dataclasses import dataclass

from kube_efs.model.csi.access_point_tags import Tag, parse_tags
from kube_efs.settings.base import Environment
from kube_efs.settings.fields import count, seconds, setting, switch


@dataclass(frozen=True, kw_only=True)
class CsiSettings(Environment):
    """Volumes of the driver ``efs.csi.aws.com``, where ``KUBE_EFS_BACKENDS`` names ``csi``."""

    csi_endpoint: str | None = setting(
        "CSI_ENDPOINT",
        None,
        "Socket of the CSI Controller service, for csi-provisioner. Without it, this controller serves"
        " claims itself.",
        read=str,
        accepts="`unix:///path/of/a/socket`",
        shown="none",
    )
    delete_access_point_root_dir: bool = switch(
        "KUBE_EFS_DELETE_ACCESS_POINT_ROOT_DIR",
        False,
        "Whether the directory of an access point and its contents are removed with its volume.",
    )
    access_point_quota: int = count(
        "KUBE_EFS_ACCESS_POINT_QUOTA",
        10_000,
        "Maximum number of access points of a file system. At the limit, the next file system of a class "
        "is used.",
        least=1,
        most=1_000_000,
    )
    access_point_tags: tuple[Tag, ...] = setting(
        "KUBE_EFS_ACCESS_POINT_TAGS",
        (),
        "Additional tags of every access point.",
        read=parse_tags,
        accepts="`key:value key:value`",
        shown="none",
    )
    volume_tags: bool = switch(
        "KUBE_EFS_VOLUME_TAGS",
        False,
        "Whether access points also have tags of the claim, the volume and the requested size."
        " AmazonEFSCSIDriverPolicy denies such tags.",
    )
    access_point_refresh_seconds: float = seconds(
        "KUBE_EFS_ACCESS_POINT_REFRESH_SECONDS",
        900,
        "Seconds between two searches for access points of other creators.",
        least=10,
    )
