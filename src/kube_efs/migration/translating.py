"""Translates an NFS volume to a volume of the CSI driver with the same directory."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from kube_efs.migration.errors import MigrationRefused
from kube_efs.migration.journal import ANNOTATION, Journal, write_journal
from kube_efs.migration.manifests import Manifest, kept_volume, with_finalizer
from kube_efs.model import tunnel_volumes
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.csi.capabilities import VolumeCapability
from kube_efs.model.csi.mount_options import plan_mount
from kube_efs.model.csi.volume_attributes import VolumeAttributes
from kube_efs.model.csi.volume_handles import VolumeHandle, parse_strict_file_system_id, parse_volume_handle
from kube_efs.model.directory_volumes import is_conventional
from kube_efs.model.efs.directories import Directory
from kube_efs.model.errors import RemovalRefused
from kube_efs.model.volumes import (
    DELETION_SECRET_NAME,
    DELETION_SECRET_NAMESPACE,
    DRIVER,
    LOOPBACK,
    PROVISIONED_BY,
    Location,
    Volume,
)

_SUFFIX = "-csi"
_LONGEST_NAME = 253
# What these say of an NFS volume is in the handle and the mount options of a CSI volume.
_NFS_ANNOTATIONS = frozenset(
    {PROVISIONED_BY, tunnel_volumes.FILE_SYSTEM_ID, "volume.beta.kubernetes.io/mount-options"}
)
# How the server is reached is the driver's business now.
_REACHING = frozenset({"port", "addr", "mountport"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The CSI volume to create, its reclaim policy after the migration, and what changes."""

    manifest: Manifest
    policy: ReclaimPolicy
    notes: tuple[str, ...] = ()


def csi_name(nfs_name: str) -> str:
    """The name of the CSI volume for the NFS volume of that name."""
    room = _LONGEST_NAME - len(_SUFFIX)
    if len(nfs_name) <= room:
        return nfs_name + _SUFFIX
    digest = f"-{hashlib.sha256(nfs_name.encode()).hexdigest()[:8]}"
    return nfs_name[: room - len(digest)] + digest + _SUFFIX


def translate(
    volume: Volume, body: Manifest, claim: Manifest, location: Location, *, storage_class: str
) -> Translation:
    """The CSI volume for the data at ``location``; ``body`` and ``claim`` are manifests of today's objects.

    Raises InvalidValue for what the driver would not mount.
    """
    base = _base_of(volume, location)
    policy = _policy(volume, base)
    journal = Journal(claim=claim, volume=body, policy=policy)
    manifest = {
        **body,
        "metadata": _metadata(volume, body, journal, is_provisioned=base is not None),
        "spec": _spec(volume, body, _handle(location, base), storage_class),
    }
    return Translation(
        manifest=kept_volume(manifest), policy=policy, notes=tuple(_notes(volume, policy, base))
    )


def _base_of(volume: Volume, location: Location) -> Directory | None:
    """The parent of a directory that was created for a claim; None for others, which are never removed.

    These are the rules by which the NFS provisioners remove directories with their volumes.
    """
    if volume.provisioned_by is None or volume.nfs is None:
        return None
    try:
        tunnel_volumes.removable_location(volume)
    except RemovalRefused:
        is_plain = not location.directory.is_root and volume.nfs.path == str(location.directory)
        return Directory(location.directory.parts[:-1]) if is_plain and is_conventional(volume) else None
    return tunnel_volumes.BASE


def _policy(volume: Volume, base: Directory | None) -> ReclaimPolicy:
    is_to_go = volume.reclaim_policy is ReclaimPolicy.DELETE and base is not None
    return ReclaimPolicy.DELETE if is_to_go else ReclaimPolicy.RETAIN


def _handle(location: Location, base: Directory | None) -> str:
    """The handle. With its base mark, the controller may remove the directory.

    Without one it is written as every version of the AWS driver reads it.
    """
    file_system_id = parse_strict_file_system_id(location.file_system_id, field="file system")
    handle = VolumeHandle(file_system_id=file_system_id, directory=location.directory, base=base)
    text = str(handle) if base is not None else f"{file_system_id}:{location.directory}"
    if parse_volume_handle(text) != handle:
        raise MigrationRefused(
            "cannot be written into a volume handle",
            field="spec.nfs.path",
            value=str(location.directory),
            remedy="rename the directory, or leave the volume as it is",
        )
    return text


def _metadata(volume: Volume, body: Manifest, journal: Journal, *, is_provisioned: bool) -> Manifest:
    found = body["metadata"]
    kept = {k: v for k, v in (found.get("annotations") or {}).items() if k not in _NFS_ANNOTATIONS}
    # As csi-provisioner leaves them on a volume without a Secret.
    own = {PROVISIONED_BY: DRIVER, DELETION_SECRET_NAME: "", DELETION_SECRET_NAMESPACE: ""}
    annotations = {**kept, **(own if is_provisioned else {}), ANNOTATION: write_journal(journal)}
    metadata = {**found, "name": csi_name(volume.name), "annotations": annotations}
    return with_finalizer(metadata) if is_provisioned else metadata


def _spec(volume: Volume, body: Manifest, handle: str, storage_class: str) -> Manifest:
    kept = {key: value for key, value in body["spec"].items() if key not in {"nfs", "mountOptions"}}
    options = _mount_options(body)
    return {
        **kept,
        "storageClassName": storage_class,
        "csi": {"driver": DRIVER, "volumeHandle": handle},
        **({"mountOptions": options} if options else {}),
    }


def _mount_options(body: Manifest) -> list[str]:
    """The mount options that do not concern the server; raises InvalidArgument for a refused one."""
    beta = (body["metadata"].get("annotations") or {}).get("volume.beta.kubernetes.io/mount-options")
    # The kubelet ignores spec.mountOptions of a volume with the annotation.
    given = (body["spec"].get("mountOptions") or ()) if beta is None else map(str.strip, beta.split(","))
    options = [one for one in given if one and one.partition("=")[0].lower() not in _REACHING]
    if body["spec"]["nfs"].get("readOnly"):
        options.append("ro")
    # The driver's own check, so that no pod is the first to find out.
    handle = VolumeHandle(file_system_id=parse_strict_file_system_id("fs-00000000", field=""))
    plan_mount(handle, VolumeAttributes(), VolumeCapability(mount_flags=tuple(options)), read_only=False)
    return list(dict.fromkeys(options))


def _notes(volume: Volume, policy: ReclaimPolicy, base: Directory | None) -> Iterator[str]:
    if policy is not volume.reclaim_policy:
        why = "its directory was not created for it by a provisioner" if base is None else "EFS has no other"
        yield f"reclaim policy {volume.reclaim_policy} becomes {policy}: {why}"
    if volume.nfs and volume.nfs.server != LOOPBACK:
        yield "its traffic will be encrypted"
