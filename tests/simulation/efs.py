"""The file systems and access points, as AWS knows them, and their directories with owners and bytes.

Bytes are counted by the volume through which they were written, so that every loss is detected.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.unit.provisioning.backends.csi.aws_account import AwsAccount

from kube_efs.model.efs.kinds import FileSystemKind

Parts: TypeAlias = tuple[str, ...]

TRASH = ".kube-efs-trash"
REGION = "eu-west-1"


@dataclass(slots=True, eq=False)
class Directory:
    """A directory; ``written`` contains the bytes by the volume's uid.

    ``made_by`` is the worker pod that created it. ``marks`` are the paths from here that are marked for each
    group ID (``provisioning.gid_marks``).
    """

    made_by: str = ""
    uid: int = 0
    gid: int = 0
    children: dict[str, "Directory"] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    marks: dict[int, set[Parts]] = field(default_factory=dict)
    # The bytes that were copied here, by the uid of the volume through which they were written.
    copied: "dict[str, int] | None" = None
    # Whether it is an empty copy of a source that was removed with data before.
    lacks_data: bool = False

    def find(self, parts: Parts) -> "Directory | None":
        """The directory at this path from here; None when it does not exist."""
        here: Directory | None = self
        for name in parts:
            here = here.children.get(name) if here else None
        return here

    @property
    def is_used(self) -> bool:
        """Whether it contains data."""
        return bool(self.children or self.written or self.marks or self.copied)

    def below(self) -> Iterator["Directory"]:
        """This directory and every directory in it."""
        yield self
        for child in self.children.values():
            yield from child.below()


@dataclass(slots=True, eq=False)
class Copy:
    """The records of a copy: its source, and its directory when it is complete.

    ``has_part`` is whether an attempt has copied a part of the source.
    """

    source: Parts
    finished: Directory | None = None
    has_part: bool = False


@dataclass(slots=True, eq=False)
class FileSystem:
    """A file system; ``listed`` is whether AWS lists it, and ``since`` the time since then.

    ``is_full`` is whether nothing can be created in it. ``made_by`` is the process that created it for
    claims. A deleted one stays known, without data.
    """

    file_system_id: str
    address: str
    root: Directory = field(default_factory=Directory)
    listed: bool = True
    is_full: bool = False
    since: float = 0.0
    made_by: str = ""
    kind: FileSystemKind = FileSystemKind.EFS
    is_deleted: bool = False
    copies: dict[str, Copy] = field(default_factory=dict)
    # The directories that were moved to the trash with data.
    removed: set[Parts] = field(default_factory=set)

    def find(self, parts: Parts) -> Directory | None:
        """The directory; None when it does not exist."""
        return self.root.find(parts)

    def make(self, parts: Parts) -> Directory:
        """The directory; creates it with its parents if necessary."""
        here = self.root
        for name in parts:
            here = here.children.setdefault(name, Directory())
        return here

    @property
    def trash(self) -> dict[str, Directory]:
        """The contents of its trash."""
        folder = self.root.children.get(TRASH)
        return folder.children if folder else {}


# File system, the directory that is being removed, and the reason.
RemovalObserver: TypeAlias = Callable[[FileSystem, Parts, str], None]


class Efs:
    """Every file system and access point of the region."""

    def __init__(self) -> None:
        self.file_systems: dict[str, FileSystem] = {}
        self.access_points: dict[str, dict[str, Any]] = {}
        self.on_removal: list[RemovalObserver] = []
        self.on_access_point_removal: list[Callable[[dict[str, Any]], None]] = []
        self.on_file_system_removal: list[Callable[[FileSystem], None]] = []
        # Called with a file system and a pod that has it mounted, or mounts it, without mount targets.
        self.on_lost_mount: list[Callable[[str, str], None]] = []
        # The running pods that have a file system mounted, except those that list directories.
        self.mounted_by: Callable[[str], Iterable[str]] = lambda _: ()
        # The file systems that were created for claims, with their mount targets and security groups.
        self.account = AwsAccount(self.access_points)
        # File system and directory of each source that a pod copies at this moment.
        self.being_copied: Callable[[], Iterable[tuple[str, Parts]]] = tuple
        # The process that became the leader last.
        self.leader = ""
        # Access points that were created late: by a copy of an answered request, or after the end of the
        # requesting process or its lead. The next leader does not expect them.
        self.strays: set[str] = set()
        # Whether AWS allows GetAccessPoint of S3 Files, which the managed policy does not contain.
        self.allows_get = True
        self._made = 0

    def add(self, file_system_id: str, kind: FileSystemKind = FileSystemKind.EFS) -> FileSystem:
        """A new file system."""
        address = f"10.0.0.{len(self.file_systems) + 10}"
        made = self.file_systems[file_system_id] = FileSystem(file_system_id, address, kind=kind)
        return made

    def delete(self, file_system_id: str) -> None:
        """Delete the file system with its data."""
        found = self.file_systems[file_system_id]
        for observer in self.on_file_system_removal:
            observer(found)
        found.root, found.listed, found.is_deleted = Directory(), False, True

    def mount_target_goes(self, file_system_id: str) -> None:
        """Call the observers for each pod that has the file system mounted, if this was the last one."""
        for pod in () if self.has_targets(file_system_id) else self.mounted_by(file_system_id):
            self._lose_mount(file_system_id, pod)

    def mount(self, file_system_id: str, pod: str) -> None:
        """Call the observers if the file system is being removed or gone, and has no mount targets."""
        found = self.file_systems[file_system_id]
        if not found.made_by or self.has_targets(file_system_id):
            return
        if found.is_deleted or self.account.stage(file_system_id) == "removing":
            self._lose_mount(file_system_id, pod)

    def has_targets(self, file_system_id: str) -> bool:
        """Whether it has a mount target that nobody deletes."""
        targets = [one for one in self.account.mount_targets.values() if one["LifeCycleState"] != "deleting"]
        return any(one["FileSystemId"] == file_system_id for one in targets)

    def _lose_mount(self, file_system_id: str, pod: str) -> None:
        for observer in self.on_lost_mount:
            observer(file_system_id, pod)

    def move_to_trash(self, file_system: FileSystem, parts: Parts, name: str, why: str) -> bool:
        """Rename the directory into the trash, if it exists."""
        parent = file_system.find(parts[:-1])
        if not parts or parent is None or parts[-1] not in parent.children:
            return False
        for observer in self.on_removal:
            observer(file_system, parts, why)
        moved = parent.children.pop(parts[-1])
        if moved.is_used:
            file_system.removed.add(parts)
        file_system.make((TRASH,)).children[name] = moved
        return True

    def add_access_point(self, made_by: str, requested_at: float, **entry: Any) -> dict[str, Any]:
        """A new access point, as EFS describes it; ``made_by`` is the process that requested it.

        ``requested_at`` is the time of its first request for it.
        """
        self._made += 1
        access_point_id = f"fsap-{self._made:017x}"
        made = {**entry, "AccessPointId": access_point_id, "LifeCycleState": "available"}
        made |= {"made_by": made_by, "requested_at": requested_at}
        self.access_points[access_point_id] = made
        return made

    def make_root(self, access_point_id: str) -> Directory:
        """The root of an access point; creates it with its owners if necessary."""
        entry = self.access_points[access_point_id]
        file_system, parts = self.file_systems[entry["FileSystemId"]], root_of(entry)
        root = entry["RootDirectory"]
        info = root.get("CreationInfo") or root.get("CreationPermissions")
        is_new = file_system.find(parts) is None
        made = file_system.make(parts)
        if is_new and info:
            made.uid, made.gid = info["OwnerUid"], info["OwnerGid"]
        return made

    def delete_access_point(self, access_point_id: str) -> bool:
        """Delete the access point, if it exists."""
        found = self.access_points.get(access_point_id)
        if found is None:
            return False
        for observer in self.on_access_point_removal:
            observer(found)
        del self.access_points[access_point_id]
        return True


def root_of(access_point: dict[str, Any]) -> Parts:
    """The root directory of an access point."""
    path = access_point["RootDirectory"]["Path"]
    return tuple(part for part in path.split("/") if part)


def directories(file_system: FileSystem) -> Iterator[tuple[Parts, Directory]]:
    """Every directory outside of the trash."""
    waiting: list[tuple[Parts, Directory]] = [((), file_system.root)]
    while waiting:
        parts, folder = waiting.pop()
        yield parts, folder
        waiting += [((*parts, name), child) for name, child in folder.children.items() if name != TRASH]
