"""Access points as the EFS API describes them, their root directories, and the NFS servers that serve them.

Clients mount ``/`` and are to find the access point's root there with its identity, which is a property of
a whole server. So each that has connections has a process; starting one takes 50 ms and some megabytes.
"""

import asyncio
import os
import stat
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import structlog

from fake_efs.errors import InvalidValue
from fake_efs.file_systems import parse_access_point_id, parse_file_system_id
from fake_efs.nfs_server import MINOR_VERSIONS, NfsServer, PosixUser

_PARENT_MODE = 0o755
_FOLLOW_NOTHING = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Longer than a client's lease, after which the client must open its files again.
IDLE_SECONDS = 120.0
log = structlog.get_logger()


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

    access_point_id: str
    arn: str
    file_system_id: str
    root: PurePosixPath
    user: PosixUser | None = None
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
        file_system_id=parse_file_system_id(description["FileSystemId"], field="FileSystemId"),
        root=_parse_root(root.get("Path") or "/"),
        user=PosixUser(uid=user["Uid"], gid=user["Gid"]) if user else None,
        creation=_creation(creation) if creation else None,
    )


def parse_s3_files_access_point(description: Mapping[str, Any]) -> EmbeddedAccessPoint:
    """An answer of GetAccessPoint of S3 Files; raises InvalidValue as ``parse_access_point`` does."""
    user, root = description.get("posixUser"), description.get("rootDirectory") or {}
    made = root.get("creationPermissions")
    return EmbeddedAccessPoint(
        access_point_id=parse_access_point_id(description["accessPointId"], field="accessPointId"),
        arn=description["accessPointArn"],
        file_system_id=parse_file_system_id(description["fileSystemId"], field="fileSystemId"),
        root=_parse_root(root.get("path") or "/"),
        user=PosixUser(uid=user["uid"], gid=user["gid"]) if user else None,
        creation=Creation(
            owner=PosixUser(uid=made["ownerUid"], gid=made["ownerGid"]), mode=int(made["permissions"], 8)
        )
        if made
        else None,
    )


def _parse_root(text: str) -> PurePosixPath:
    root = PurePosixPath(text)
    # PurePosixPath leaves out empty and "." components, which may mean something else to the server.
    plain = text in {"/", str(root), f"{root}/"} and text.isprintable()
    if not plain or not root.is_absolute() or ".." in root.parts:
        raise InvalidValue("is not a plain absolute path", field="root directory", value=text)
    return root


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
    parts = access_point.root.parts[1:]
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


@dataclass(slots=True, kw_only=True)
class _Slot:
    """What serves an access point; changed only under ``lock``, except the number of connections."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    nfs: NfsServer | None = None
    root: RootFolder | None = None
    connections: int = 0
    idle_since: float = 0.0

    async def end(self) -> None:
        """End the server, if there is one."""
        if self.nfs is not None:
            await self.nfs.stop()
            self.nfs = None


class AccessPointServers:
    """Starts servers when they are asked for; ``end_idle`` must be called from time to time.

    ``folder`` is the file system's data, ``work_dir`` gets a directory for each access point,
    ``minor_versions`` of NFS 4 are served.
    """

    def __init__(
        self,
        folder: Path,
        work_dir: Path,
        *,
        minor_versions: Sequence[int] = MINOR_VERSIONS,
        idle_seconds: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._work_dir = work_dir
        self._minor_versions = minor_versions
        self.idle_seconds = idle_seconds
        self._clock = clock
        self._slots: defaultdict[str, _Slot] = defaultdict(_Slot)

    @property
    def running(self) -> frozenset[str]:
        """The access points that have a server at the moment."""
        return frozenset(name for name, slot in self._slots.items() if slot.nfs is not None)

    @asynccontextmanager
    async def serving(self, access_point: EmbeddedAccessPoint) -> AsyncIterator[int]:
        """The port of the access point's server, which is kept up while the context is open.

        Raises InvalidValue when the root directory cannot be used, PlatformError or OSError when there
        can be no server.
        """
        slot = self._slots[access_point.access_point_id]
        async with slot.lock:
            nfs = await self._ensure(slot, access_point)
            slot.connections += 1
        try:
            yield nfs.port
        finally:
            slot.connections -= 1
            slot.idle_since = self._clock()

    async def end_idle(self) -> None:
        """End the servers that have had no connection for a while."""
        for name, slot in list(self._slots.items()):
            if slot.nfs is None or slot.connections or slot.lock.locked():
                continue
            if self._clock() - slot.idle_since >= self.idle_seconds:
                async with slot.lock:  # which nobody has, so that nothing happens in between
                    await slot.end()
                log.debug("access_point_server_ended", access_point=name)

    async def stop(self) -> None:
        """End every server."""
        await asyncio.gather(*(slot.end() for slot in self._slots.values()))

    async def _ensure(self, slot: _Slot, access_point: EmbeddedAccessPoint) -> NfsServer:
        root = await ensure_root(self._folder, access_point)
        if slot.nfs is not None and slot.nfs.process.running and slot.root == root:
            return slot.nfs
        # A server keeps to a root directory that somebody has removed, even if there is a new one.
        await slot.end()
        work_dir = self._work_dir / access_point.access_point_id
        slot.nfs = await NfsServer.start(
            root.path, work_dir, user=access_point.user, minor_versions=self._minor_versions
        )
        slot.root = root
        slot.idle_since = self._clock()
        return slot.nfs
