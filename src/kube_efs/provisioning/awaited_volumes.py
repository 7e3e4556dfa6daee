"""Volumes whose creation was answered, and whose objects do not exist yet.

The guards find the users of a directory or an access point among the volumes of the cluster. csi-provisioner
creates the object of a volume only after the answer to its call, and repeats that without another call. In
between, a removal of an earlier volume with the same directory must not mistake it for unused.

Only the process that has answered knows such a volume. It also gets the calls to remove the earlier one. If
it ends, csi-provisioner ends too, and calls again.

There is no limit of time: csi-provisioner repeats the creation without end while the API server refuses it,
for example because of an admission webhook.
"""

from collections.abc import Mapping
from typing import Final

from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle
from kube_efs.model.efs.directories import Relation
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.volumes import Location
from kube_efs.provisioning.volume_index import VolumeIndex

_SAME_OR_BELOW: Final = frozenset({Relation.SAME, Relation.BELOW})


class AwaitedVolumes:
    """Remembers volumes by name until watches show them in ``index``."""

    def __init__(self, index: VolumeIndex) -> None:
        self._index = index
        self._volumes: dict[str, VolumeHandle] = {}
        index.on_shown = lambda name: self._volumes.pop(name, None)

    def expect(self, name: str, handle: VolumeHandle) -> None:
        """Await the volume of that name, which will lead to the access point or directory of the handle."""
        if name not in self._index.volumes:
            self._volumes[name] = handle

    def __contains__(self, name: str) -> bool:
        """Whether the volume of that name is awaited."""
        return name in self._volumes

    def forget(self, handle: VolumeHandle) -> None:
        """Forget the volumes of exactly this handle, because it was removed."""
        self._volumes = {name: one for name, one in self._volumes.items() if one != handle}

    def access_points(self, file_system_id: FileSystemId) -> frozenset[AccessPointId]:
        """The access points of awaited volumes on the file system."""
        handles = (one for one in self._volumes.values() if one.file_system_id == file_system_id)
        return frozenset(one.access_point_id for one in handles if one.access_point_id is not None)

    def using(
        self, access_point_id: AccessPointId | None, place: Location | None
    ) -> Mapping[str, VolumeHandle]:
        """The awaited volumes that use this access point, or this directory or one below it."""
        return {
            name: one
            for name, one in self._volumes.items()
            if (
                one.access_point_id == access_point_id
                if one.access_point_id is not None
                else place is not None and _is_in(one, place)
            )
        }


def _is_in(handle: VolumeHandle, place: Location) -> bool:
    is_same = handle.file_system_id == place.file_system_id
    return is_same and handle.directory.relation_to(place.directory) in _SAME_OR_BELOW
