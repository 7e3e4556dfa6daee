"""The objects of the cluster that name a file system."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kube_efs.doctor.checks.common import (
    VolumeKind,
    is_of_s3_files,
    our_volumes,
    provisioners,
    targets_of,
)
from kube_efs.doctor.facts import ClusterFacts
from kube_efs.model import tunnel_volumes
from kube_efs.model.claims import StorageClass
from kube_efs.model.csi.file_system_templates import FileSystemTemplate
from kube_efs.model.csi.parameters import parse_parameters
from kube_efs.model.csi.sidecar_parameters import parse_sidecar_parameters
from kube_efs.model.csi.volume_attributes import parse_attributes
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import InvalidValue
from kube_efs.model.volumes import DRIVER, Volume

_IDENTITY = "iam"
_SECRET = "a provisioner Secret"  # noqa: S105  # no secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """An object that names a file system.

    ``elsewhere`` is what shows that the file system may belong to another AWS account; empty without a sign.
    ``uses``: a class or volume, not the ConfigMap, which names all file systems of the region.
    ``has_identity``: mounted only with the option iam.
    """

    name: str
    elsewhere: str = ""
    uses: bool = True
    has_identity: bool = False
    kind: FileSystemKind = FileSystemKind.EFS

    def __str__(self) -> str:
        return f"named by {self.name}{f', which has {self.elsewhere}' if self.elsewhere else ''}"


def named_file_systems(cluster: ClusterFacts) -> Mapping[FileSystemId, Sequence[Mention]]:
    """Every file system in volumes, classes and tunnel targets, with the objects that name it."""
    found: defaultdict[FileSystemId, list[Mention]] = defaultdict(list)
    kinds = provisioners(cluster)
    for one in cluster.classes or ():
        for file_system_id in file_systems_of(one, kinds.get(one.provisioner)):
            found[file_system_id].append(
                Mention(
                    name=f"StorageClass {one.name}",
                    elsewhere=_role_of_class(one),
                    has_identity=one.provisioner == DRIVER and _IDENTITY in one.mount_options,
                )
            )
        for file_system_id in s3_file_systems_of(one):
            name, kind = f"StorageClass {one.name}", FileSystemKind.S3_FILES
            found[file_system_id].append(Mention(name=name, has_identity=True, kind=kind))
    for volume, file_system_id in our_volumes(cluster):
        is_s3 = is_of_s3_files(volume)
        found[file_system_id].append(
            Mention(
                name=f"PersistentVolume {volume.name}",
                elsewhere=_sign_of_volume(volume),
                has_identity=is_s3 or (volume.csi is not None and _IDENTITY in volume.mount_options),
                kind=FileSystemKind.S3_FILES if is_s3 else FileSystemKind.EFS,
            )
        )
    for file_system_id in targets_of(cluster).targets:
        mention = Mention(name=f"ConfigMap {cluster.names.config_map}", uses=False)
        found[file_system_id].append(mention)
    return found


def file_systems_in_use(cluster: ClusterFacts) -> frozenset[FileSystemId]:
    """Those that a class or volume names."""
    return frozenset(fs for fs, by in named_file_systems(cluster).items() if any(one.uses for one in by))


def used_with_identity(cluster: ClusterFacts) -> frozenset[FileSystemId]:
    """Those whose classes and volumes all mount with an IAM identity."""
    used = {fs: [one for one in by if one.uses] for fs, by in named_file_systems(cluster).items()}
    return frozenset(fs for fs, by in used.items() if by and all(one.has_identity for one in by))


def file_systems_of(storage_class: StorageClass, kind: VolumeKind | None) -> Sequence[FileSystemId]:
    """The EFS file systems that a class names; none for one that cannot be understood."""
    try:
        if kind is VolumeKind.TUNNEL:
            rules = tunnel_volumes.parse_class(storage_class)
            default = rules.default
            is_id = default is not None and not isinstance(default, tunnel_volumes.DefaultFileSystem)
            return (*(rules.allowed or ()), *([FileSystemId(str(default))] if is_id else ()))
        if kind is VolumeKind.CSI:
            parsed = parse_parameters(storage_class.parameters)
            found, is_efs = parsed.file_systems, parsed.provisioning.kind is FileSystemKind.EFS
            return found if is_efs and isinstance(found, tuple) else ()
    except InvalidValue:
        return ()
    return ()


def s3_file_systems_of(storage_class: StorageClass) -> Sequence[FileSystemId]:
    """The file systems of S3 Files that a class names; a role in its Secret has no effect there."""
    try:
        parsed = parse_parameters(storage_class.parameters) if storage_class.provisioner == DRIVER else None
    except InvalidValue:
        return ()
    if parsed is None or parsed.provisioning.kind is not FileSystemKind.S3_FILES:
        return ()
    return parsed.file_systems if isinstance(parsed.file_systems, tuple) else ()


def created_file_system(storage_class: StorageClass) -> FileSystemTemplate | None:
    """The file system that a class of the CSI driver creates for a claim; None with existing file systems."""
    try:
        return parse_parameters(storage_class.parameters).template
    except InvalidValue:
        return None


def _role_of_class(storage_class: StorageClass) -> str:
    """The same as ``_sign_of_volume``; tunnel volumes have no Secret."""
    try:
        return _SECRET if parse_sidecar_parameters(storage_class.parameters).provisioner_secret else ""
    except InvalidValue:
        return ""


def _sign_of_volume(volume: Volume) -> str:
    """What shows that the file system of the volume may belong to another account; empty without a sign.

    Static volumes have no Secret, only the attributes.
    """
    if volume.deletion_secret and not is_of_s3_files(volume):
        return _SECRET
    try:
        attributes = parse_attributes(volume.csi.attributes if volume.csi else {})
    except InvalidValue:
        return ""
    if attributes.cross_account:
        return "the attribute crossaccount"
    return "the addresses of mount targets" if attributes.address or attributes.addresses else ""
