"""Volume capabilities from messages of the protocol."""

from collections.abc import Mapping

from kube_efs.csi.protocol import csi_pb2
from kube_efs.model.csi.capabilities import AccessMode, VolumeCapability

_MODES = csi_pb2.VolumeCapability.AccessMode.Mode


def read_capability(message: csi_pb2.VolumeCapability) -> VolumeCapability:
    """The value; the access mode is UNKNOWN if this version does not know it."""
    number = message.access_mode.mode
    known: Mapping[int, str] = {value: name for name, value in _MODES.items()}
    try:
        mode = AccessMode(known.get(number, ""))
    except ValueError:
        mode = AccessMode.UNKNOWN
    return VolumeCapability(
        access_mode=mode,
        is_block=message.WhichOneof("access_type") == "block",
        file_system_type=message.mount.fs_type,
        mount_flags=tuple(message.mount.mount_flags),
    )
