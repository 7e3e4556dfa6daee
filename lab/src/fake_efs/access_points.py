"""Access points as the EFS API describes them, and their root directories."""

import asyncio
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kube_efs.model.csi.access_points import PosixUser
from kube_efs.model.csi.volume_handles import AccessPointId, parse_access_point_id
from kube_efs.model.efs.directories import Directory, parse_directory
from kube_efs.model.efs.ids import FileSystemId, parse_file_system_id
from kube_efs.model.errors import InvalidValue

_PARENT_MODE = 0o755
_FOLLOW_NOTHING = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """Owner and mode that a root directory is made with (``CreationInfo``)."""

    owner: PosixUser
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedAccessPoint:
    """What connections through an access point get.

    ``user`` None leaves them their own identity. Without ``creation`` the root directory must exist.
    """

    access_point_id: AccessPointId
    arn: str
    file_system_id: FileSystemId
    root: Directory
    user: PosixUser | None = None
    secondary_gids: tuple[int, ...] = ()
    creation: Creation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RootFolder:
    """A root directory that exists; another ``inode`` at the same path is another directory."""

    path: Path
    inode: int


def parse_access_point(description: Mapping[str, Any]) -> EmbeddedAccessPoint:
    """An entry of DescribeAccessPoints; raises InvalidValue for ids and paths that cannot be served."""
    user = description.get("PosixUser") or {}
    root = description.get("RootDirectory") or {}
    creation = root.get("CreationInfo") or {}
    return EmbeddedAccessPoint(
        access_point_id=parse_access_point_id(description["AccessPointId"], field="AccessPointId"),
        arn=description["AccessPointArn"],
        file_system_id=parse_file_system_id(description["FileSystemId"]),
        root=parse_directory(root.get("Path") or "/", field="root directory"),
        user=PosixUser(uid=user["Uid"], gid=user["Gid"]) if user else None,
        secondary_gids=tuple(user.get("SecondaryGids") or ()),
        creation=_creation(creation) if creation else None,
    )


def _creation(info: Mapping[str, Any]) -> Creation:
    owner = PosixUser(uid=info["OwnerUid"], gid=info["OwnerGid"])
    return Creation(owner=owner, mode=int(info["Permissions"], 8))


async def ensure_root(folder: Path, access_point: EmbeddedAccessPoint) -> RootFolder:
    """The access point's root directory in a file system's ``folder``, made when it is missing and may be.

    Directories above it that are missing, too, are root's and open to all for reading. No symbolic link
    is followed, since clients make them. Raises InvalidValue.
    """
    try:
        return await asyncio.to_thread(_ensure_root, folder, access_point)
    except OSError as error:
        raise _unusable(access_point, f"cannot be used ({error})") from error


def _ensure_root(folder: Path, access_point: EmbeddedAccessPoint) -> RootFolder:
    parts = access_point.root.parts
    descriptor = os.open(folder, _FOLLOW_NOTHING)
    try:
        for depth, name in enumerate(parts, start=1):
            child = _enter(name, descriptor, access_point, is_root=depth == len(parts))
            os.close(descriptor)
            descriptor = child
        return RootFolder(path=folder.joinpath(*parts), inode=os.fstat(descriptor).st_ino)
    finally:
        os.close(descriptor)


def _enter(name: str, parent: int, access_point: EmbeddedAccessPoint, *, is_root: bool) -> int:
    """A descriptor of the child directory of that name, made when it is missing."""
    creation = access_point.creation
    try:
        found = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        if creation is None:
            raise _unusable(access_point, "does not exist, and has no CreationInfo") from None
        with suppress(FileExistsError):  # another access point's connection was faster
            os.mkdir(name, 0o700, dir_fd=parent)
        child = os.open(name, _FOLLOW_NOTHING, dir_fd=parent)
        if is_root:
            os.fchown(child, creation.owner.uid, creation.owner.gid)
        os.fchmod(child, creation.mode if is_root else _PARENT_MODE)
        return child
    if not stat.S_ISDIR(found.st_mode):
        raise _unusable(access_point, f"is not a directory at {name}")
    return os.open(name, _FOLLOW_NOTHING, dir_fd=parent)


def _unusable(access_point: EmbeddedAccessPoint, problem: str) -> InvalidValue:
    field = f"root directory of {access_point.access_point_id}"
    return InvalidValue(problem, field=field, value=str(access_point.root))
