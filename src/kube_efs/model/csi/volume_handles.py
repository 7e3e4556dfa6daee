"""Volume handles: the values of ``spec.csi.volumeHandle`` and of the CSI field ``volume_id``.

::

    [efs:]FSID[:PATH[:APID]]
    s3files:FSID[:PATH[:APID]]

The handles of all versions of the AWS driver are accepted: before 3.0 its controller wrote ``FSID::APID``,
since then ``efs:FSID::APID``. Users write the other forms for their own volumes.

The handle of a directory that was created for a claim (``provisioningMode: efs-dir``) is
``efs:FSID:/BASE/./NAME``. The ``/./`` marks the end of the class's base, as in ``rsync --relative``. The AWS
driver reads it as ``/BASE/NAME``, so that either driver can mount such volumes. Only a directory with this
mark may be removed with its volume.
"""

import posixpath
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NewType

from kube_efs.model.csi.errors import InvalidArgument, refused_as_argument
from kube_efs.model.efs.directories import Directory, Relation, parse_directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind

AccessPointId = NewType("AccessPointId", str)

VOLUME_ID = "volume ID"
_END_OF_BASE = "/./"
_FILE_SYSTEM_ID = re.compile(r"fs-[0-9a-f]{8,40}")
_ACCESS_POINT_ID = re.compile(r"fsap-[0-9a-f]{8,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeHandle:
    """The location of a volume.

    ``directory`` is relative to the root of the access point if there is one, else to that of the file
    system. ``base`` is set if the directory was created for a claim: then it is strictly below the base, and
    may be removed with the volume. Raises InvalidArgument for parts that a handle cannot contain.
    """

    kind: FileSystemKind = FileSystemKind.EFS
    file_system_id: FileSystemId
    directory: Directory = field(default_factory=Directory)
    access_point_id: AccessPointId | None = None
    base: Directory | None = None

    def __post_init__(self) -> None:
        if ":" in str(self.directory):
            raise InvalidArgument(
                "has a colon, which separates the parts of a handle",
                field="directory",
                value=str(self.directory),
                remedy="use another name",
            )
        if self.base is not None and (
            self.access_point_id or self.directory.relation_to(self.base) is not Relation.BELOW
        ):
            raise InvalidArgument(
                "is not below its base", field="directory", value=str(self.directory), remedy="name a child"
            )

    def __str__(self) -> str:
        path = "" if self.directory.is_root else str(self.directory)
        if self.base is not None:
            path = _marked(self.directory, self.base)
        fields = [self.kind, self.file_system_id, path, self.access_point_id or ""]
        return ":".join(fields).rstrip(":")


@lru_cache(maxsize=1024)  # a claim asks a dozen times where its volume is
def parse_volume_handle(text: str) -> VolumeHandle:
    """The parts of a handle; raises InvalidArgument.

    A relative path starts at the root. ``.`` and ``..`` are resolved as text and never lead above the root.
    Unlike the AWS driver, this refuses control characters and names that are too long, which could add a
    mount option or a line of a configuration file.
    """
    if not text:
        raise InvalidArgument("is missing", field=VOLUME_ID, remedy="give the volume's handle")
    kind, fields = _split(text)
    if len(fields) > 3:
        raise _malformed("has too many fields", text)
    file_system_id, path, access_point_id = (*fields, "", "")[:3]
    with refused_as_argument():
        # normpath keeps two slashes at the start, as POSIX says.
        directory = parse_directory(posixpath.normpath(f"/{path.lstrip('/')}"), field=VOLUME_ID)
    handle = VolumeHandle(
        kind=kind,
        file_system_id=parse_strict_file_system_id(file_system_id, field=VOLUME_ID),
        directory=directory,
        access_point_id=parse_access_point_id(access_point_id, field=VOLUME_ID) if access_point_id else None,
    )
    return _with_base(handle, path, text)


def _split(text: str) -> tuple[FileSystemKind, list[str]]:
    fields = text.split(":")
    if fields[0].startswith("fs-") or len(fields) == 1:
        return FileSystemKind.EFS, fields
    try:
        return FileSystemKind(fields[0]), fields[1:]
    except ValueError:
        raise _malformed("has an unknown type", text) from None


def parse_strict_file_system_id(text: str, *, field: str) -> FileSystemId:
    """The ID, ``fs-`` and 8 to 40 lowercase hexadecimal digits; raises InvalidArgument."""
    if not _FILE_SYSTEM_ID.fullmatch(text):
        remedy = "use an id such as fs-0123456789abcdef0"
        raise InvalidArgument("is not a valid file system ID", field=field, value=text, remedy=remedy)
    return FileSystemId(text)


def parse_access_point_id(text: str, *, field: str) -> AccessPointId:
    """The ID, ``fsap-`` and 8 to 40 lowercase hexadecimal digits; raises InvalidArgument."""
    if not _ACCESS_POINT_ID.fullmatch(text):
        remedy = "use an id such as fsap-0123456789abcdef0"
        raise InvalidArgument("is not a valid access point ID", field=field, value=text, remedy=remedy)
    return AccessPointId(text)


def _with_base(handle: VolumeHandle, path: str, text: str) -> VolumeHandle:
    if handle.kind is not FileSystemKind.EFS:
        return handle
    before, mark, _ = path.partition(_END_OF_BASE)
    base = Directory(handle.directory.parts[: before.count("/")])
    if not mark or handle.access_point_id or handle.directory.relation_to(base) is not Relation.BELOW:
        return handle
    marked = replace(handle, base=base)
    # Only a user writes a handle in another form, and must remove the directory.
    return marked if str(marked) == text else handle


def _marked(directory: Directory, base: Directory) -> str:
    own = "/".join(directory.parts[len(base.parts) :])
    return f"{'' if base.is_root else base}{_END_OF_BASE}{own}"


def _malformed(problem: str, text: str) -> InvalidArgument:
    remedy = "use [efs:|s3files:]FILE_SYSTEM[:PATH[:ACCESS_POINT]]"
    return InvalidArgument(problem, field=VOLUME_ID, value=text, remedy=remedy)
