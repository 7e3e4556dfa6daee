"""Persistent volume claims and storage classes, as far as a provisioner reads them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from kube_efs.model.efs.ids import ClaimUid, FileSystemId


class ReclaimPolicy(StrEnum):
    """What becomes of the data when a claim is deleted (``persistentVolumeReclaimPolicy``)."""

    DELETE = "Delete"
    RETAIN = "Retain"
    RECYCLE = "Recycle"


class ClaimPhase(StrEnum):
    """``status.phase`` of a claim."""

    PENDING = "Pending"
    BOUND = "Bound"
    LOST = "Lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageClass:
    """A storage class; parameters are still text."""

    name: str
    provisioner: str
    parameters: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    reclaim_policy: ReclaimPolicy = ReclaimPolicy.DELETE
    mount_options: tuple[str, ...] = ()
    waits_for_consumer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim.

    ``storage_class`` is None for claims that take the default class and have not been given it yet;
    ``match_labels`` is None without a selector; ``requested_storage`` is a quantity such as ``1Gi``;
    ``storage_provisioner`` is who is to serve it, as Kubernetes has noted; ``rejection`` is the text with
    which it was refused before. ``file_system`` is the one that a controller has chosen and recorded.
    """

    namespace: str
    name: str
    uid: ClaimUid
    resource_version: str = ""
    phase: ClaimPhase = ClaimPhase.PENDING
    deleting: bool = False
    storage_class: str | None = None
    volume_name: str = ""
    match_labels: Mapping[str, str] | None = None
    access_modes: tuple[str, ...] = ()
    requested_storage: str = "1Gi"
    is_block: bool = False
    has_data_source: bool = False
    selected_node: str | None = None
    storage_provisioner: str | None = None
    attributes_class: str | None = None
    rejection: str | None = None
    file_system: FileSystemId | None = None

    @property
    def key(self) -> str:
        """``namespace/name``, as users and logs name it."""
        return f"{self.namespace}/{self.name}"

    @property
    def wants_volume(self) -> bool:
        """Whether it still waits for a volume to be made."""
        return self.phase is ClaimPhase.PENDING and not self.volume_name and not self.deleting
