"""``/proc/self/mountinfo`` as values; see proc_pid_mountinfo(5).

The kernel returns the table in pieces. While other mounts are added and removed, a reader can miss one that
exists all the time (certainly before Linux 5.8, and there are later reports). poll(2) reports whether the
table has changed since it was opened: if not, the reading is complete.
"""

import os
import posixpath
import re
import select
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from kube_efs.model.efs.directories import Directory, parse_directory
from kube_efs.model.errors import PlatformError

MOUNTINFO = Path("/proc/self/mountinfo")

_ATTEMPTS = 20
_BEHIND_MOUNT_POINT = 5  # fields up to and with the mount point
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class MountEntry:
    """One mount. ``device`` is ``major:minor``; ``root`` what of the file system is mounted.

    Options are those of the mount, ``super_options`` those of the file system. Bytes that are not UTF-8 are
    surrogates, as in Python's other paths.
    """

    mount_id: int
    parent_id: int
    device: str
    root: str
    mount_point: Path
    options: tuple[str, ...]
    file_system_type: str
    source: str
    super_options: tuple[str, ...]

    @property
    def is_read_only(self) -> bool:
        """Whether nothing can be written there."""
        return "ro" in self.options or "ro" in self.super_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A directory of an NFS server, and where it is mounted."""

    server: str
    directory: Directory
    mount_point: Path


def read_mountinfo(path: Path = MOUNTINFO) -> tuple[MountEntry, ...]:
    """The mounts in the namespace of this process, a later one above an earlier one; raises PlatformError.

    Reads again while the table changes. If it changes during every reading, the result contains the mounts
    of all readings, because no reading contains a mount that did not exist.
    """
    found: dict[int, MountEntry] = {}
    try:
        for _ in range(_ATTEMPTS):
            text, is_whole = read_once(path)
            entries = parse_mountinfo(os.fsdecode(text))
            if is_whole:
                return entries
            shown = {entry.mount_id: entry for entry in entries}
            # The newest reading comes last, in its order: of two mounts at a path, the later one is visible.
            found = {number: entry for number, entry in found.items() if number not in shown} | shown
    except OSError as error:
        raise table_unreadable(error, path) from error
    return tuple(found.values())


def table_unreadable(error: OSError, path: Path) -> PlatformError:
    """The error for a table that cannot be read."""
    problem = f"cannot be read ({error.strerror})"
    return PlatformError(problem, field="mounts", value=str(path), remedy="mount /proc")


def read_once(path: Path = MOUNTINFO) -> tuple[bytes, bool]:
    """One reading of the table, and whether the table did not change meanwhile; raises OSError."""
    with path.open("rb", buffering=0) as file:
        text = file.readall()
        return text, not has_changed(file)


def has_changed(table: FileIO) -> bool:
    """Whether the mounts have changed since the table was opened, or since the last call."""
    changes = select.poll()
    changes.register(table, select.POLLPRI)
    return bool(changes.poll(0))


def parse_mountinfo(text: str) -> tuple[MountEntry, ...]:
    """The entries in the order of their lines; lines of another form are left out."""
    entries = map(_parse_line, text.split("\n"))
    return tuple(entry for entry in entries if entry is not None)


def lines_by_mount_point(text: bytes) -> Mapping[bytes, Sequence[bytes]]:
    """The lines in their order, by mount point without escapes; the other fields are not parsed."""
    found: dict[bytes, list[bytes]] = {}
    for line in text.split(b"\n"):
        fields = line.split(b" ", _BEHIND_MOUNT_POINT)
        if len(fields) > _BEHIND_MOUNT_POINT:
            place = fields[_BEHIND_MOUNT_POINT - 1]
            found.setdefault(_unescaped_bytes(place) if b"\\" in place else place, []).append(line)
    return found


def _parse_line(line: str) -> MountEntry | None:
    fields = line.split(" ")  # by each blank: a source may be empty
    try:
        mount_id, parent_id, device, root, mount_point, options, *rest = fields
        # Before the separator there is any number of optional fields.
        file_system_type, source, super_options = rest[rest.index("-") + 1 :]
        return MountEntry(
            mount_id=int(mount_id),
            parent_id=int(parent_id),
            device=device,
            root=_unescaped(root),
            mount_point=Path(_unescaped(mount_point)),
            options=tuple(options.split(",")),
            file_system_type=_unescaped(file_system_type),
            source=_unescaped(source),
            super_options=tuple(_unescaped(super_options).split(",")),
        )
    except ValueError:
        return None


def _unescaped(text: str) -> str:
    r"""The field with each ``\ooo`` replaced by the byte that it stands for."""
    if "\\" not in text:  # the usual case, and there may be thousands of lines
        return text
    return os.fsdecode(_unescaped_bytes(os.fsencode(text)))


def _unescaped_bytes(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), text)


def export_of(entry: MountEntry) -> Export | None:
    """The export of the mount, its path cleaned lexically; None when the source has no server.

    ``root`` is not used: for NFS, the kernel writes the directory of the server into the source. Raises
    InvalidValue for a path that no volume can have.
    """
    server, separator, path = entry.source.partition(":/")
    if not separator:
        return None
    cleaned = posixpath.normpath(f"/{path.lstrip('/')}")
    directory = parse_directory(cleaned, field=f"mount {entry.mount_point}")
    return Export(server=server, directory=directory, mount_point=entry.mount_point)


def find_exports(entries: Iterable[MountEntry], server: str) -> tuple[Export, ...]:
    """The exports of exactly that server, in the order of the entries."""
    named = (entry for entry in entries if entry.source.startswith(f"{server}:/"))
    return tuple(export for entry in named if (export := export_of(entry)))
