"""Snapshots: their directories, and the IDs that Kubernetes stores (``status.snapshotHandle``).

::

    FSID:/.kube-efs-snapshots/NAME[:UID:GID]

``UID`` and ``GID`` are the identity that the volume of the snapshot gave to its clients, if it did. A volume
that is restored from the snapshot gives the files of this owner to its own.
"""

import re

from kube_efs.model.copies import SNAPSHOTS, CopySource, FileOwner
from kube_efs.model.csi.errors import VolumeMissing
from kube_efs.model.csi.root_directories import plain_name
from kube_efs.model.efs.directories import Directory, parse_directory
from kube_efs.model.efs.ids import FileSystemId, parse_file_system_id
from kube_efs.model.errors import InvalidValue
from kube_efs.model.volumes import Location

BASE = Directory((SNAPSHOTS,))

_ID = re.compile(r"(fs-[0-9a-f]+):(/[^:]+)(?::([0-9]{1,10}):([0-9]{1,10}))?")


def snapshot_location(file_system_id: FileSystemId, name: str) -> Location:
    """The directory of the snapshot with that name; a repeated request gives the same one."""
    return Location(file_system_id=file_system_id, directory=BASE / plain_name(name))


def render_snapshot_id(snapshot: CopySource) -> str:
    """The ID of the snapshot with this data."""
    owner = f":{snapshot.owner.uid}:{snapshot.owner.gid}" if snapshot.owner else ""
    return f"{snapshot.location}{owner}"


def parse_snapshot_id(text: str) -> CopySource:
    """The data of the snapshot; raises VolumeMissing if no snapshot of this driver can have the ID."""
    match = _ID.fullmatch(text)
    try:
        if match is not None:
            directory = parse_directory(match[2])
            if directory.parts[:-1] == BASE.parts:
                owner = FileOwner(uid=int(match[3]), gid=int(match[4])) if match[3] else None
                location = Location(file_system_id=parse_file_system_id(match[1]), directory=directory)
                return CopySource(location=location, owner=owner)
    except InvalidValue:
        pass
    remedy = "give the ID of a snapshot of this driver"
    raise VolumeMissing("is not a snapshot of this driver", field="snapshot_id", value=text, remedy=remedy)
