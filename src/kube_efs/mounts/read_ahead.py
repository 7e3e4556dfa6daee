"""How far the kernel reads ahead on a mount.

Since Linux 5.4 the default for NFS is 128 KiB, with which one reader gets a fraction of what EFS gives.
"""

import re
from pathlib import Path
from typing import Final

import structlog

from kube_efs.mounts.mountinfo import MountEntry

log = structlog.get_logger()

_DEVICES: Final = Path("/sys/class/bdi")
_BLOCKS: Final = 15  # what Linux took before 5.4
_RSIZE: Final = re.compile(r"(?:^|,)rsize=([0-9]{1,9})(?:,|$)")


def wanted_read_ahead(options: str) -> int | None:
    """The kibibytes that suit mount options with ``rsize``; None without it."""
    size = _RSIZE.search(options)
    return _BLOCKS * int(size[1]) // 1024 if size else None


def set_read_ahead(mount: MountEntry, kibibytes: int, *, devices: Path = _DEVICES) -> None:
    """Let the kernel read that much ahead on an NFS mount, if it lets us."""
    # Anything else, such as a bound folder, shares its device with mounts that are not ours.
    if not mount.file_system_type.startswith("nfs"):
        return
    try:
        (devices / mount.device / "read_ahead_kb").write_text(f"{kibibytes}\n", encoding="ascii")
    except OSError as error:
        log.warning("read-ahead-not-set", target=str(mount.mount_point), reason=str(error))
