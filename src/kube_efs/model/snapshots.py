"""VolumeSnapshotContents: the objects that say which snapshots a driver must create and delete.

The names are those of csi-snapshotter 8, so that either can replace the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kube_efs.model.claims import ReclaimPolicy

# While an attempt to create the snapshot may have begun; then the content is not deleted before the copy is.
BEING_CREATED: Final = "snapshot.storage.kubernetes.io/volumesnapshot-being-created"
# Set by snapshot-controller when the VolumeSnapshot was deleted.
BEING_DELETED: Final = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
FINALIZER: Final = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
_GROUP_MEMBER: Final = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-handle"
# Where snapshot-controller records the Secret of the VolumeSnapshotClass.
SECRET_NAME: Final = "snapshot.storage.kubernetes.io/deletion-secret-name"  # noqa: S105
SECRET_NAMESPACE: Final = "snapshot.storage.kubernetes.io/deletion-secret-namespace"  # noqa: S105


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotContent:
    """A VolumeSnapshotContent.

    ``volume_handle`` is the volume to copy. Instead of it, an administrator can give the handle of a snapshot
    that exists (``given_handle``). ``snapshot_uid`` is that of its VolumeSnapshot. ``handle``, ``is_ready``
    and ``problem`` are its status.
    """

    name: str
    uid: str
    resource_version: str = field(default="", compare=False)
    driver: str
    deletion_policy: ReclaimPolicy = ReclaimPolicy.DELETE
    volume_handle: str = ""
    given_handle: str = ""
    snapshot_uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    handle: str = ""
    is_ready: bool = False
    is_of_group: bool = False
    problem: str = ""

    @property
    def request_name(self) -> str:
        """The name of the snapshot for the driver, as csi-snapshotter gives it."""
        return f"snapshot-{self.snapshot_uid}"

    @property
    def inputs(self) -> tuple[object, ...]:
        """What decides about its snapshot, without what is written about it meanwhile."""
        return (
            self.uid,
            self.volume_handle or self.given_handle,
            self.snapshot_uid,
            self.deleting,
            BEING_DELETED in self.annotations,
            self.deletion_policy,
            self.is_ready,
        )

    @property
    def secret(self) -> tuple[str, str] | None:
        """Namespace and name of the Secret of its class."""
        namespace, name = self.annotations.get(SECRET_NAMESPACE), self.annotations.get(SECRET_NAME)
        return (namespace, name) if namespace and name else None

    @property
    def is_being_created(self) -> bool:
        """Whether an attempt to create it may have begun."""
        return BEING_CREATED in self.annotations

    @property
    def to_be_created(self) -> bool:
        """Whether its snapshot must be created, or the creation must be completed."""
        is_wanted = not self.deleting or (self.is_being_created and BEING_DELETED not in self.annotations)
        return self._lacks_copy and is_wanted

    @property
    def to_be_discarded(self) -> bool:
        """Whether the unfinished copy must be removed: its VolumeSnapshot was deleted before it was ready."""
        is_unwanted = self.deleting and BEING_DELETED in self.annotations
        return self._lacks_copy and is_unwanted and self.is_being_created

    @property
    def _lacks_copy(self) -> bool:
        is_single = _GROUP_MEMBER not in self.annotations
        return bool(self.volume_handle and is_single and not self.is_ready)

    @property
    def to_be_deleted(self) -> bool:
        """Whether it must be removed, with its data unless the policy is Retain."""
        if not self.deleting:
            return False
        if self.given_handle and not self.snapshot_uid:
            return True
        return not self.is_being_created and BEING_DELETED in self.annotations

    @property
    def needs_data(self) -> bool:
        """Whether the data must stay for it; False if it must be removed with it."""
        is_leaving = self.to_be_deleted or self.to_be_discarded
        return not (is_leaving and self.deletion_policy is ReclaimPolicy.DELETE)

    @property
    def has_data(self) -> bool:
        """Whether data must be removed with it."""
        is_own = bool(self.handle) and not self.is_of_group
        return is_own and self.deletion_policy is ReclaimPolicy.DELETE
