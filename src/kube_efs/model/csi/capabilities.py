"""Volume capabilities of CSI, and which of them EFS supports."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.csi.mount_flags import parse_mount_flags
from kube_efs.model.efs.kinds import FileSystemKind


class AccessMode(StrEnum):
    """``VolumeCapability.AccessMode.Mode`` of the CSI specification."""

    UNKNOWN = "UNKNOWN"
    SINGLE_NODE_WRITER = "SINGLE_NODE_WRITER"
    SINGLE_NODE_READER_ONLY = "SINGLE_NODE_READER_ONLY"
    MULTI_NODE_READER_ONLY = "MULTI_NODE_READER_ONLY"
    MULTI_NODE_SINGLE_WRITER = "MULTI_NODE_SINGLE_WRITER"
    MULTI_NODE_MULTI_WRITER = "MULTI_NODE_MULTI_WRITER"
    SINGLE_NODE_SINGLE_WRITER = "SINGLE_NODE_SINGLE_WRITER"
    SINGLE_NODE_MULTI_WRITER = "SINGLE_NODE_MULTI_WRITER"

    @property
    def reads_only(self) -> bool:
        """Whether the volume is read-only."""
        return self in {AccessMode.SINGLE_NODE_READER_ONLY, AccessMode.MULTI_NODE_READER_ONLY}

    @property
    def is_for_one_pod(self) -> bool:
        """Whether the volume is for one target of one node at a time: ReadWriteOncePod."""
        return self is AccessMode.SINGLE_NODE_SINGLE_WRITER


# The AWS driver supports only the two modes that are neither read-only nor for a single pod. A single writer
# on several nodes is not supported: NFS cannot prevent other writers, and Kubernetes has no such access mode.
_REFUSED_MODES = frozenset({AccessMode.UNKNOWN, AccessMode.MULTI_NODE_SINGLE_WRITER})


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeCapability:
    """The requested use of a volume; ``mount_flags`` are the mount options of its class or volume."""

    access_mode: AccessMode = AccessMode.MULTI_NODE_MULTI_WRITER
    is_block: bool = False
    file_system_type: str = ""
    mount_flags: tuple[str, ...] = ()


def check_capabilities(
    capabilities: Sequence[VolumeCapability], kind: FileSystemKind = FileSystemKind.EFS
) -> None:
    """Raises InvalidArgument when there are none, or file systems of this kind do not support one of them."""
    if not capabilities:
        raise InvalidArgument("are missing", field="volume capabilities", remedy="give at least one")
    for capability in capabilities:
        if capability.access_mode in _REFUSED_MODES:
            raise InvalidArgument(
                "is not supported",
                field="access mode",
                value=capability.access_mode.value,
                remedy="use another, such as ReadWriteMany",
            )
    if any(capability.is_block for capability in capabilities):
        remedy = "use volumeMode Filesystem"
        raise InvalidArgument("is not supported", field="access type", value="block", remedy=remedy)
    for capability in capabilities:
        parse_mount_flags(capability.mount_flags, kind)
