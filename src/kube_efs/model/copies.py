"""Copies of directories: what is copied for a new volume or a snapshot, and how far a copy is."""

from dataclasses import dataclass, field
from typing import Final

from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.efs.directories import Directory
from kube_efs.model.volumes import Location

# At the top of a file system: the unfinished copies, and the records of the finished ones.
COPIES: Final = ".kube-efs-copies"
# The reason of the events about the progress of a copy.
COPYING: Final = "Copying"
# The data of snapshots.
SNAPSHOTS: Final = ".kube-efs-snapshots"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOwner:
    """A user and a group."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySource:
    """A directory with data to copy.

    ``owner`` is the identity that its volume gives to all clients, if it does; otherwise the volume's own
    user and group are those of the directory. ``may_be_missing``: EFS creates the directory of an access
    point at the first mount, so before that a missing directory is an empty volume. ``handle`` and ``role``
    are those that the caller gave, if no claim was asked for the data.
    """

    location: Location
    owner: FileOwner | None = None
    may_be_missing: bool = False
    handle: VolumeHandle | None = None
    role: CrossAccountRole | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTerms:
    """How a directory is copied into another one of its file system.

    ``key`` identifies the copy: with the same key, an interrupted copy continues and a finished one is not
    repeated. With ``maps_owner``, files of the source's own user and group get those of the target. If others
    use the target, ``in_use``, it is not replaced even if it is empty: their pods may have mounted it.
    """

    key: str = ""
    source: Directory = field(default_factory=Directory)
    owner: FileOwner | None = None
    may_be_missing: bool = False
    maps_owner: bool = False
    # Whether others use the target may change; the copy is the same.
    in_use: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyProgress:
    """The files and directories that were copied, and their bytes; without those of earlier attempts."""

    entries: int = 0
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A complete copy; ``finished`` is the time when it became complete, in seconds since 1970."""

    progress: CopyProgress
    finished: float
