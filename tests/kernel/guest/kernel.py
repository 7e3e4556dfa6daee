"""The NFS mounts of the guest's kernel."""

import re
from dataclasses import dataclass
from pathlib import Path

from kube_efs.mounts.mountinfo import read_mountinfo


@dataclass(frozen=True, slots=True, kw_only=True)
class NfsMount:
    """A mount; ``connects`` is the number of its connections until now, on all its ``transports``."""

    source: str
    read_only: bool
    options: frozenset[str]
    connects: int
    transports: int

    @property
    def port(self) -> int:
        """The server's port."""
        return int(next(one for one in self.options if one.startswith("port=")).partition("=")[2])


def nfs_mount(target: Path) -> NfsMount:
    """The NFS mount at that path; raises LookupError without one."""
    for entry in reversed(read_mountinfo()):
        if entry.mount_point == target and entry.file_system_type == "nfs4":
            connects = _connects(target)
            return NfsMount(
                source=entry.source,
                read_only=entry.is_read_only,
                options=frozenset(entry.super_options),
                connects=sum(connects),
                transports=len(connects),
            )
    raise LookupError(f"{target} is not mounted")


def is_mounted(target: Path) -> bool:
    """Whether anything is mounted at that path."""
    return any(entry.mount_point == target for entry in read_mountinfo())


def _connects(target: Path) -> list[int]:
    """The connections of each transport, from ``xprt: tcp SRCPORT BINDS CONNECTS …`` (see nfsiostat(8))."""
    text = Path("/proc/self/mountstats").read_text()
    _, _, rest = text.partition(f" mounted on {target} with ")
    own, _, _ = rest.partition("\ndevice ")
    return [int(found) for found in re.findall(r"xprt:\ttcp \d+ \d+ (\d+)", own)]
