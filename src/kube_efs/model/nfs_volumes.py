"""The rules that every kind of NFS volume shares."""

from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import TunnelTargets
from kube_efs.model.errors import ClaimRefused, NotYet


def refuse_unservable(claim: Claim) -> None:
    """Raises ClaimRefused for a block volume, and for a data source that cannot be copied."""
    if claim.is_block:
        raise ClaimRefused(
            "cannot be served by NFS", field="spec.volumeMode", value="Block", remedy="use Filesystem"
        )
    source = claim.data_source
    if source is None:
        return
    if not source.is_known:
        raise ClaimRefused(
            "cannot be copied",
            field="spec.dataSource",
            value=f"{source.kind} {source.name}",
            remedy="name a PersistentVolumeClaim or a VolumeSnapshot",
        )
    if source.namespace not in {"", claim.namespace}:
        raise ClaimRefused(
            "is another namespace than that of the claim",
            field="spec.dataSourceRef.namespace",
            value=source.namespace,
            remedy="copy within one namespace",
        )


def tunnel_mount_options(storage_class: StorageClass) -> tuple[str, ...]:
    """The class's mount options; raises ClaimRefused for one that would bypass the tunnel."""
    for option in storage_class.mount_options:
        if (
            not option.isprintable()
            or "," in option
            or option.partition("=")[0] in {"port", "addr", "mountport"}
        ):
            raise ClaimRefused(
                "cannot be combined with the tunnel",
                field=f"StorageClass {storage_class.name} mountOptions",
                value=option,
                remedy="leave it out",
            )
    return storage_class.mount_options


def tunnel_port(file_system_id: FileSystemId, targets: TunnelTargets) -> int:
    """The loopback port of the file system, even if it is deleted; raises NotYet without one."""
    port = targets.ports.get(file_system_id)
    if port is None:
        remedy = "it gets one with the next discovery"
        raise NotYet("has no tunnel port yet", field="file system", value=str(file_system_id), remedy=remedy)
    return port
