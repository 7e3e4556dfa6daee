"""The group IDs of volumes, and their ranges.

An annotation of a volume contains its group ID. The kubelet reads it and gives the group to pods that use the
volume, so that no other unprivileged process can write there.
"""

import re
import zlib
from dataclasses import dataclass

GID_ANNOTATION = "pv.beta.kubernetes.io/gid"
# The user and group ID of a CSI volume's directory. With the annotation above, the kubelet would give the
# group to pods, which the AWS driver does not do.
DIRECTORY_ID_ANNOTATION = "efs-stunnel.gnuthought.com/directory-id"
GID_MAX = 2**31 - 1
_SPREAD = 1000

_NUMBER = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GidRange:
    """Group ids from ``minimum`` to ``maximum``, both included."""

    minimum: int
    maximum: int

    def __contains__(self, gid: int) -> bool:
        return self.minimum <= gid <= self.maximum

    @property
    def size(self) -> int:
        """The number of IDs."""
        return self.maximum - self.minimum + 1

    def elsewhere(self, name: str) -> int:
        """Where to search for a free ID after a conflict with another creator that also begins at the lowest.

        It depends only on the name, and is near the lower end.
        """
        return self.minimum + zlib.crc32(name.encode()) % min(self.size, _SPREAD)

    def __str__(self) -> str:
        return f"{self.minimum}-{self.maximum}" if self.size > 1 else str(self.minimum)


def parse_gid(text: str | None) -> int | None:
    """The group ID in the text of an annotation; None if it is missing or invalid for the kubelet."""
    if text is None or not _NUMBER.fullmatch(text):
        return None
    gid = int(text)
    return gid if gid <= GID_MAX else None
