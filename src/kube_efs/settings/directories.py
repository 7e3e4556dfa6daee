"""The kinds of volumes, and the provisioners of directory volumes."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from pydantic_settings import NoDecode

from kube_efs.model.efs.directories import Directory, parse_directory
from kube_efs.model.efs.ids import FileSystemId, parse_file_system_id
from kube_efs.settings.fields import DNS_NAME_PATTERN, matching, parsed, read_items, read_yaml

# Qualified names, as Kubernetes accepts them for provisioners: in any case, with or without a domain.
ProvisionerName = Annotated[
    str,
    matching(
        rf"(?i:({DNS_NAME_PATTERN}/)?[a-z0-9]([a-z0-9._-]{{0,61}}[a-z0-9])?)",
        "is not a valid provisioner name",
    ),
]
# Not normalized, because mounts and volumes contain it as given: in any case, with or without a final dot.
ServerName = Annotated[str, matching(rf"(?i:{DNS_NAME_PATTERN}\.?)", "is not a valid DNS name")]
BaseDirectory = Annotated[str, parsed(lambda text: str(parse_directory(text)))]


class BackendName(StrEnum):
    """The kinds of volumes that a controller creates."""

    TUNNEL = "tunnel"
    DIRECTORY = "directory"
    CSI = "csi"


class WorkerMounts(StrEnum):
    """How worker pods mount the root of a file system."""

    TUNNEL = "tunnel"
    CSI = "csi"


class DirectoryProvisionerSettings(BaseModel):
    """One provisioner of directory volumes; ``dns_name`` None is AWS's own name of the file system.

    ``mount`` is where the file system's ``path`` is mounted in this pod.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ProvisionerName
    file_system_id: Annotated[FileSystemId, parsed(parse_file_system_id)]
    dns_name: ServerName | None = None
    path: BaseDirectory | None = None
    mount: Path | None = None

    @property
    def base(self) -> Directory | None:
        """The directory that contains the directories of volumes; None if it is not set."""
        return None if self.path is None else parse_directory(self.path)


def _some(backends: tuple[BackendName, ...]) -> tuple[BackendName, ...]:
    # The check of pydantic for a length also counts malformed entries, and reports an error twice.
    if not backends:
        raise ValueError("names no provisioner")
    return backends


Backends = Annotated[tuple[BackendName, ...], NoDecode, BeforeValidator(read_items), AfterValidator(_some)]
Provisioners = Annotated[tuple[DirectoryProvisionerSettings, ...], NoDecode, BeforeValidator(read_yaml)]
