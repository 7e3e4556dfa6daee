"""How far the kernel reads ahead on a mount.

Since Linux 5.4 the default for NFS is 128 KiB, with which one reader gets a fraction of what EFS gives.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from kube_efs.model.errors import PlatformError
from kube_efs.mounts.mountinfo import MountEntry

log = structlog.get_logger()

_DEVICES: Final = Path("/sys/class/bdi")
_BLOCKS: Final = 15  # what Linux took before 5.4
_RSIZE: Final = re.compile(r"(?:^|,)rsize=([0-9]{1,9})(?:,|$)")


def set_read_ahead(
    mounts: Callable[[], Iterable[MountEntry]], target: Path, options: str, *, devices: Path = _DEVICES
) -> None:
    """Let the kernel read 15 blocks of ``rsize`` ahead on the NFS mount there, if it lets us."""
    size = _RSIZE.search(options)
    if size is None:
        return
    kibibytes = _BLOCKS * int(size[1]) // 1024
    try:
        there = [entry for entry in mounts() if entry.mount_point == target]
        # Anything else, such as a bound folder, shares its device with mounts that are not ours.
        if there and there[-1].file_system_type.startswith("nfs"):
            (devices / there[-1].device / "read_ahead_kb").write_text(f"{kibibytes}\n", encoding="ascii")
    except (OSError, PlatformError) as error:
        log.warning("read-ahead-not-set", target=str(target), reason=str(error))
