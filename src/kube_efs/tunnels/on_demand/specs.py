"""What a tunnel on demand is for: the values that make one service of stunnel differ from another."""

import hashlib
import re
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Final, NewType

import msgspec

from kube_efs.aws.credential_sources import IamOptions
from kube_efs.model.errors import InvalidValue
from kube_efs.model.ids import (
    FileSystemId,
    Region,
    ZoneName,
    parse_file_system_id,
    parse_region,
    parse_zone_name,
)
from kube_efs.model.targets import parse_address
from kube_efs.model.volume_handles import AccessPointId, parse_access_point_id

Holder = NewType("Holder", str)

# Targets of mounts are paths, which the kernel limits to 4096 bytes.
_LONGEST_TEXT: Final = 4096 + 256
_NAME_DIGITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelSpec:
    """Mounts with equal ones share a tunnel; raises InvalidValue for a malformed part.

    ``iam`` None connects without an identity. ``region`` None is the node's own. With ``address`` only that
    mount target is used, with ``zone`` those of the zone come first, and ``cross_account`` looks the file
    system up by the name that begins with the id of the node's zone. ``checks_revocation`` asks OCSP for
    the server's certificate.
    """

    file_system_id: FileSystemId
    access_point_id: AccessPointId | None = None
    iam: IamOptions | None = None
    region: Region | None = None
    address: str | None = None
    zone: ZoneName | None = None
    cross_account: bool = False
    checks_revocation: bool = False

    def __post_init__(self) -> None:
        parse_file_system_id(self.file_system_id)
        if self.access_point_id is not None:
            parse_access_point_id(self.access_point_id, field="access point id")
        if self.region is not None:
            parse_region(self.region)
        if self.zone is not None:
            parse_zone_name(self.zone)
        if self.address is not None and parse_address(self.address) != self.address:
            raise InvalidValue("is not in its shortest form", field="address", value=self.address)
        if self.cross_account and (self.address is not None or self.zone is not None):
            raise InvalidValue("excludes an address and a zone", field="cross_account", value=True)
        if self.iam is not None:
            _check_iam(self.iam)

    @property
    def name(self) -> str:
        """The name of the service, the same for equal specs, whoever computes it and whenever."""
        return _name(self)


@lru_cache(maxsize=2048)
def _name(spec: TunnelSpec) -> str:
    # Without what has its default, so that a field that comes with a later version changes no name.
    given = {one.name: getattr(spec, one.name) for one in fields(spec)}
    given = {name: value for name, value in given.items() if value not in {None, False}}
    digest = hashlib.sha256(msgspec.json.encode(given, order="deterministic")).hexdigest()
    return f"{spec.file_system_id}-{digest[:_NAME_DIGITS]}"


def parse_holder(text: str) -> Holder:
    """Who holds a tunnel, such as a volume and where it is mounted; raises InvalidValue."""
    _check_text(text, field="holder")
    return Holder(text)


def _check_iam(iam: IamOptions) -> None:
    for one in fields(iam):
        value = getattr(iam, one.name)
        if value is not None:
            _check_text(value, field=f"iam.{one.name}")


def _check_text(text: str, *, field: str) -> None:
    if not 0 < len(text) <= _LONGEST_TEXT or re.search(r"[\x00-\x1f\x7f]", text):
        raise InvalidValue(
            "is empty, too long, or has control characters", field=field, value=text, remedy="use plain text"
        )
