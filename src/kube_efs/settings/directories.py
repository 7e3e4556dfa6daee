"""The kinds of volumes, and the provisioners of directory volumes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from kube_efs.model.efs.directories import Directory, parse_directory
from kube_efs.model.efs.ids import FileSystemId, parse_file_system_id
from kube_efs.model.errors import InvalidValue
from kube_efs.settings.fields import (
    DNS_NAME_PATTERN,
    InvalidItem,
    Reader,
    matching,
    one_of,
    read_items,
    read_path,
    read_yaml,
)

# Qualified names, as Kubernetes accepts them for provisioners: in any case, with or without a domain.
read_provisioner_name = matching(
    rf"(?i:({DNS_NAME_PATTERN}/)?[a-z0-9]([a-z0-9._-]{{0,61}}[a-z0-9])?)",
    "is not a valid provisioner name",
)
# Not normalized, because mounts and volumes contain it as given: in any case, with or without a final dot.
read_server = matching(rf"(?i:{DNS_NAME_PATTERN}\.?)", "is not a valid DNS name")


def read_base_directory(text: str) -> str:
    """Reads the path of a directory of a file system."""
    return str(parse_directory(text))


class BackendName(StrEnum):
    """The kinds of volumes that a controller creates."""

    TUNNEL = "tunnel"
    DIRECTORY = "directory"
    CSI = "csi"


class WorkerMounts(StrEnum):
    """How worker pods mount the root of a file system."""

    TUNNEL = "tunnel"
    CSI = "csi"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryProvisionerSettings:
    """One provisioner of directory volumes; ``dns_name`` None is AWS's own name of the file system.

    ``mount`` is where the file system's ``path`` is mounted in this pod.
    """

    name: str
    file_system_id: FileSystemId
    dns_name: str | None = None
    path: str | None = None
    mount: Path | None = None

    @property
    def base(self) -> Directory | None:
        """The directory that contains the directories of volumes; None if it is not set."""
        return None if self.path is None else parse_directory(self.path)


_READERS: Final[Mapping[str, Reader[object]]] = {
    "name": read_provisioner_name,
    "file_system_id": parse_file_system_id,
    "dns_name": read_server,
    "path": read_base_directory,
    "mount": read_path,
}
_REQUIRED: Final = ("name", "file_system_id")


def read_backends(text: str) -> tuple[BackendName, ...]:
    """Reads kinds of volumes, at least one."""
    if not (backends := tuple(map(one_of(BackendName), read_items(text)))):
        raise ValueError("names no provisioner")
    return backends


def read_provisioners(text: str) -> tuple[DirectoryProvisionerSettings, ...]:
    """Reads a list of provisioners in JSON or YAML."""
    items = read_yaml(text)
    if not isinstance(items, list):
        raise ValueError("is not a list")  # noqa: TRY004 - readers raise ValueError
    return tuple(
        DirectoryProvisionerSettings(**dict(_provisioner_fields(number, item)))
        for number, item in enumerate(items)
    )


def _provisioner_fields(number: int, item: object) -> Iterator[tuple[str, Any]]:
    if not isinstance(item, Mapping):
        raise InvalidItem("is not a mapping", number, value=item)
    for name in _REQUIRED:
        if name not in item:
            raise InvalidItem("is required", number, name, value="")
    for name, value in item.items():
        if name not in _READERS:
            raise InvalidItem("is not a setting of a provisioner", number, name, value=value)
        if value is None and name not in _REQUIRED:
            continue
        try:
            if not isinstance(value, str):
                raise ValueError("is not a text")  # noqa: TRY004 - as for other values
            yield name, _READERS[name](value)
        except (ValueError, InvalidValue) as error:
            problem = error.problem if isinstance(error, InvalidValue) else str(error)
            raise InvalidItem(problem, number, name, value=value) from error
