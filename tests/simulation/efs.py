"""The file systems: directories with owners and bytes, and access points; what AWS knows, and what is on the
disk.

Bytes are counted by the volume through which they were written, so that a loss can be told exactly.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Parts: TypeAlias = tuple[str, ...]

TRASH = ".kube-efs-trash"
REGION = "eu-west-1"


@dataclass(slots=True, eq=False)
class Folder:
    """A directory; ``written`` has the bytes by the volume's uid.

    ``made_by`` is the worker pod that made it. ``marks`` are the paths from here that were marked for each
    group id (``provisioning.gid_marks``).
    """

    made_by: str = ""
    uid: int = 0
    gid: int = 0
    children: dict[str, "Folder"] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    marks: dict[int, set[Parts]] = field(default_factory=dict)

    def find(self, parts: Parts) -> "Folder | None":
        """The directory at this path from here; None when it is not there."""
        here: Folder | None = self
        for name in parts:
            here = here.children.get(name) if here else None
        return here

    @property
    def is_used(self) -> bool:
        """Whether something is in it."""
        return bool(self.children or self.written or self.marks)

    def below(self) -> Iterator["Folder"]:
        """It and every directory in it."""
        yield self
        for child in self.children.values():
            yield from child.below()


@dataclass(slots=True, eq=False)
class FileSystem:
    """``listed`` is whether AWS lists it, and ``since`` when it does so.

    ``is_full`` is whether nothing more can be made in it.
    """

    file_system_id: str
    address: str
    root: Folder = field(default_factory=Folder)
    listed: bool = True
    is_full: bool = False
    since: float = 0.0

    def find(self, parts: Parts) -> Folder | None:
        """The directory; None when it is not there."""
        return self.root.find(parts)

    def make(self, parts: Parts) -> Folder:
        """The directory, made with its parents if need be."""
        here = self.root
        for name in parts:
            here = here.children.setdefault(name, Folder())
        return here

    @property
    def trash(self) -> dict[str, Folder]:
        """What is in its trash."""
        folder = self.root.children.get(TRASH)
        return folder.children if folder else {}


# File system, the directory that is about to go, and why.
RemovalObserver: TypeAlias = Callable[[FileSystem, Parts, str], None]


class Efs:
    """Every file system and access point of the region."""

    def __init__(self) -> None:
        self.file_systems: dict[str, FileSystem] = {}
        self.access_points: dict[str, dict[str, Any]] = {}
        self.on_removal: list[RemovalObserver] = []
        self.on_access_point_removal: list[Callable[[dict[str, Any]], None]] = []
        # The process that has come to lead last.
        self.leader = ""
        # Those made late, by a copy of a request that was answered before, or when the process that asked
        # has ended or another one leads: that one does not know that they will come.
        self.strays: set[str] = set()
        self._made = 0

    def add(self, file_system_id: str) -> FileSystem:
        """A new file system."""
        address = f"10.0.0.{len(self.file_systems) + 10}"
        made = self.file_systems[file_system_id] = FileSystem(file_system_id, address)
        return made

    def move_to_trash(self, file_system: FileSystem, parts: Parts, name: str, why: str) -> bool:
        """Rename it into the trash, if it is there."""
        parent = file_system.find(parts[:-1])
        if not parts or parent is None or parts[-1] not in parent.children:
            return False
        for observer in self.on_removal:
            observer(file_system, parts, why)
        moved = parent.children.pop(parts[-1])
        file_system.make((TRASH,)).children[name] = moved
        return True

    def add_access_point(self, made_by: str, made_at: float, **entry: Any) -> dict[str, Any]:
        """A new access point, as EFS describes it; ``made_by`` is the process that asked for it."""
        self._made += 1
        access_point_id = f"fsap-{self._made:017x}"
        made = {**entry, "AccessPointId": access_point_id, "LifeCycleState": "available"}
        made |= {"made_by": made_by, "made_at": made_at}
        self.access_points[access_point_id] = made
        return made

    def make_root(self, access_point_id: str) -> Folder:
        """The root of an access point, made with its owners if need be."""
        entry = self.access_points[access_point_id]
        file_system, parts = self.file_systems[entry["FileSystemId"]], root_of(entry)
        info = entry["RootDirectory"].get("CreationInfo")
        is_new = file_system.find(parts) is None
        made = file_system.make(parts)
        if is_new and info:
            made.uid, made.gid = info["OwnerUid"], info["OwnerGid"]
        return made

    def delete_access_point(self, access_point_id: str) -> bool:
        """Remove it, if it is there."""
        found = self.access_points.get(access_point_id)
        if found is None:
            return False
        for observer in self.on_access_point_removal:
            observer(found)
        del self.access_points[access_point_id]
        return True


def root_of(access_point: dict[str, Any]) -> Parts:
    """The directory that an access point leads to."""
    path = access_point["RootDirectory"]["Path"]
    return tuple(part for part in path.split("/") if part)


def directories(file_system: FileSystem) -> Iterator[tuple[Parts, Folder]]:
    """Every directory outside of the trash."""
    waiting: list[tuple[Parts, Folder]] = [((), file_system.root)]
    while waiting:
        parts, folder = waiting.pop()
        yield parts, folder
        waiting += [((*parts, name), child) for name, child in folder.children.items() if name != TRASH]
