"""Group ids that volumes are given, and the range they come from.

A volume carries its group id in an annotation that the kubelet reads: pods that use the volume get the
group, so that they, and no other unprivileged process, may write there.
"""

import re
import zlib
from dataclasses import dataclass

GID_ANNOTATION = "pv.beta.kubernetes.io/gid"
# The number that the owners of a CSI volume's directory were given. The annotation above would have the
# kubelet give pods the group, which the AWS driver does not.
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
        """How many ids it has."""
        return self.maximum - self.minimum + 1

    def elsewhere(self, name: str) -> int:
        """Where in the range to look for a free id when others, too, have begun with the lowest.

        It depends on the name alone, and is near the lower end.
        """
        return self.minimum + zlib.crc32(name.encode()) % min(self.size, _SPREAD)

    def __str__(self) -> str:
        return f"{self.minimum}-{self.maximum}"


def parse_gid(text: str | None) -> int | None:
    """The group id in an annotation's text; None for none and for what the kubelet would not take."""
    if text is None or not _NUMBER.fullmatch(text):
        return None
    gid = int(text)
    return gid if gid <= GID_MAX else None
