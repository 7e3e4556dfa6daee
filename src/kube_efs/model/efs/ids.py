"""The types of identifiers, and the functions that validate them before use.

Identifiers become parts of file names, ``stunnel.conf``, labels and names of Kubernetes objects. Therefore
only characters that are safe in all of these are accepted.
"""

import re
from typing import NewType

from kube_efs.model.errors import InvalidValue

FileSystemId = NewType("FileSystemId", str)
MountTargetId = NewType("MountTargetId", str)
SubnetId = NewType("SubnetId", str)
VpcId = NewType("VpcId", str)
ZoneName = NewType("ZoneName", str)
Region = NewType("Region", str)
ClaimUid = NewType("ClaimUid", str)

# File systems have 8 or 17 hexadecimal digits; the older systems' own examples use other letters too.
_FILE_SYSTEM_ID = re.compile(r"fs-[0-9a-z]{1,40}")
_SUBNET_ID = re.compile(r"subnet-[0-9a-z]{1,40}")
_VPC_ID = re.compile(r"vpc-[0-9a-z]{1,40}")
_LABELS_WITH_DASHES = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def _matching(pattern: re.Pattern[str], text: object, field: str, remedy: str) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise InvalidValue("is not valid", field=field, value=text, remedy=remedy)
    return text


def parse_file_system_id(text: object, *, field: str = "file system ID") -> FileSystemId:
    """The id, such as ``fs-0123456789abcdef0``; raises InvalidValue."""
    return FileSystemId(_matching(_FILE_SYSTEM_ID, text, field, "use fs- and up to 40 digits and letters"))


def parse_subnet_id(text: object, *, field: str = "subnet ID") -> SubnetId:
    """The id, such as ``subnet-0123456789abcdef0``; raises InvalidValue."""
    return SubnetId(_matching(_SUBNET_ID, text, field, "use subnet- and up to 40 digits and letters"))


def parse_vpc_id(text: object, *, field: str = "VPC ID") -> VpcId:
    """The id, such as ``vpc-0123456789abcdef0``; raises InvalidValue."""
    return VpcId(_matching(_VPC_ID, text, field, "use vpc- and up to 40 digits and letters"))


def parse_region(text: object, *, field: str = "region") -> Region:
    """The region's name, such as ``us-east-1``; raises InvalidValue."""
    return Region(_matching(_LABELS_WITH_DASHES, text, field, "use a name such as us-east-1"))


def parse_zone_name(text: object, *, field: str = "zone") -> ZoneName:
    """The availability zone's name, such as ``us-east-1a``; raises InvalidValue."""
    return ZoneName(_matching(_LABELS_WITH_DASHES, text, field, "use a name such as us-east-1a"))
