"""PersistentVolumeClaims and StorageClasses, with the fields that a provisioner reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from kube_efs.model.efs.ids import ClaimUid, FileSystemId


class ReclaimPolicy(StrEnum):
    """What happens to a volume when its claim is deleted (``persistentVolumeReclaimPolicy``)."""

    DELETE = "Delete"
    RETAIN = "Retain"
    RECYCLE = "Recycle"


class ClaimPhase(StrEnum):
    """``status.phase`` of a claim."""

    PENDING = "Pending"
    BOUND = "Bound"
    LOST = "Lost"


SNAPSHOT_GROUP: Final = "snapshot.storage.k8s.io"


class DataSourceKind(StrEnum):
    """The kinds of data sources that a volume can be copied from."""

    CLAIM = "PersistentVolumeClaim"
    SNAPSHOT = "VolumeSnapshot"


_GROUPS: Final[Mapping[str, str]] = MappingProxyType(
    {DataSourceKind.CLAIM: "", DataSourceKind.SNAPSHOT: SNAPSHOT_GROUP}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """What a claim asks to be filled with; ``namespace`` is empty for that of the claim."""

    kind: str
    name: str
    group: str = ""
    namespace: str = ""

    @property
    def is_known(self) -> bool:
        """Whether it is a claim or a snapshot."""
        return _GROUPS.get(self.kind) == self.group


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageClass:
    """A StorageClass; its parameters are not parsed."""

    name: str
    provisioner: str
    parameters: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    reclaim_policy: ReclaimPolicy = ReclaimPolicy.DELETE
    mount_options: tuple[str, ...] = ()
    waits_for_consumer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A PersistentVolumeClaim.

    ``storage_class`` is None for a claim that uses the default class, before Kubernetes sets it.
    ``match_labels`` is None without a selector. ``requested_storage`` is a quantity such as ``1Gi``.
    ``capacity`` is that in its status, None before it is bound. ``resizing``: its expansion has begun.
    ``storage_provisioner`` is the provisioner that Kubernetes has assigned. ``rejection`` is the text of the
    last refusal. ``file_system`` is the file system that a controller has chosen and recorded.
    """

    namespace: str
    name: str
    uid: ClaimUid
    resource_version: str = ""
    phase: ClaimPhase = ClaimPhase.PENDING
    deleting: bool = False
    storage_class: str | None = None
    volume_name: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    match_labels: Mapping[str, str] | None = None
    access_modes: tuple[str, ...] = ()
    requested_storage: str = "1Gi"
    capacity: str | None = None
    resizing: bool = False
    is_block: bool = False
    data_source: DataSource | None = None
    selected_node: str | None = None
    storage_provisioner: str | None = None
    attributes_class: str | None = None
    rejection: str | None = None
    file_system: FileSystemId | None = None

    @property
    def key(self) -> str:
        """``namespace/name``, as in logs."""
        return f"{self.namespace}/{self.name}"

    @property
    def wants_volume(self) -> bool:
        """Whether it waits for a volume."""
        return self.phase is ClaimPhase.PENDING and not self.volume_name and not self.deleting
