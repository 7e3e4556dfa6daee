"""Volume attributes of ``efs.csi.aws.com``: how a node reaches the volume.

They are ``spec.csi.volumeAttributes`` of a volume and ``volume_context`` in CSI. Keys are compared without
regard to case, as in the AWS driver.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kube_efs.model.csi.errors import InvalidArgument, refused_as_argument
from kube_efs.model.csi.parameter_texts import parse_boolean
from kube_efs.model.efs.ids import ZoneName, parse_zone_name
from kube_efs.model.efs.targets import parse_address

_ENCRYPTED, _TARGET, _TARGETS, _CROSS_ACCOUNT, _AUTHENTICATION = (
    *("encryptintransit", "mounttargetip", "mounttargetipmap", "crossaccount", "authenticationsource"),
)
_KNOWN = (_ENCRYPTED, _TARGET, _TARGETS, _CROSS_ACCOUNT, _AUTHENTICATION)
# csi-provisioner and the kubelet write these for their own use.
_IGNORED = "storage.kubernetes.io/csiprovisioneridentity"
_IGNORED_PREFIX = "csi.storage.k8s.io/"
_REMEDY = "use encryptInTransit, mounttargetip, mounttargetipmap, crossaccount and authenticationSource only"


class AuthenticationSource(StrEnum):
    """Whose identity signs the connection of a mount with ``iam``, with the values of the S3 CSI driver."""

    DRIVER = "driver"
    POD = "pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneAddress:
    """The address of the mount target in a zone, which is given by its name or its ID (``use1-az1``)."""

    zone: ZoneName
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeAttributes:
    """How a node reaches a volume.

    ``encrypted`` is None if it is not set, which means TLS. ``address`` is the mount target for every node,
    ``addresses`` contain one for each zone. With ``cross_account``, the DNS name of the file system begins
    with the zone ID of the node, because names of zones differ between accounts. ``authentication_source``
    is None if it is not set, which means the driver.
    """

    encrypted: bool | None = None
    address: str | None = None
    addresses: tuple[ZoneAddress, ...] = ()
    cross_account: bool = False
    authentication_source: AuthenticationSource | None = None

    @property
    def every_address(self) -> tuple[str, ...]:
        """The addresses of the volume, one of which ``address_in`` gives for each zone; none without any."""
        return (self.address,) if self.address else tuple(entry.address for entry in self.addresses)

    def address_in(self, *zones: str) -> str | None:
        """The mount target for a node in that zone, given by its ID, its name, or both; None without any.

        ``address`` takes precedence. Without a mount target in the zone, it is that of the first zone in
        order, so that a node always uses the same; the AWS driver uses any.
        """
        if self.address is not None:
            return self.address
        by_zone = {str(entry.zone): entry.address for entry in self.addresses}
        near = next((by_zone[zone] for zone in zones if zone in by_zone), None)
        return near or (by_zone[min(by_zone)] if by_zone else None)

    def is_far_from(self, *zones: str) -> bool:
        """Whether the address for a node in that zone is in another zone, which causes a warning."""
        known = {str(entry.zone) for entry in self.addresses}
        return self.address is None and bool(known) and known.isdisjoint(zones)


def parse_attributes(attributes: Mapping[str, str]) -> VolumeAttributes:
    """The values of the attributes; raises InvalidArgument for an unknown key or a malformed value."""
    given: dict[str, str] = {}
    for key, value in attributes.items():
        name = key.lower()
        if name == _IGNORED or name.startswith(_IGNORED_PREFIX):
            continue
        if name not in _KNOWN:
            remedy = "put the path into the volume handle" if name == "path" else _REMEDY
            raise InvalidArgument("is not supported", field="volume attribute", value=key, remedy=remedy)
        if name in given:
            remedy = "give it once"
            raise InvalidArgument("is given twice", field="volume attribute", value=key, remedy=remedy)
        given[name] = value
    encrypted = given.get(_ENCRYPTED)
    with refused_as_argument():
        address = parse_address(given[_TARGET], field=_TARGET) if _TARGET in given else None
    return VolumeAttributes(
        encrypted=None if encrypted is None else parse_boolean(encrypted, field="encryptInTransit"),
        address=address,
        addresses=_parse_addresses(given[_TARGETS]) if _TARGETS in given else (),
        cross_account=parse_boolean(given.get(_CROSS_ACCOUNT, "false"), field=_CROSS_ACCOUNT),
        authentication_source=(
            parse_authentication_source(given[_AUTHENTICATION], field="authenticationSource")
            if _AUTHENTICATION in given
            else None
        ),
    )


def is_of_another_account(attributes: Mapping[str, str]) -> bool:
    """Whether these are the attributes of a volume that was created with a role, also by the AWS driver."""
    return not {_TARGET, _TARGETS, _CROSS_ACCOUNT}.isdisjoint(key.lower() for key in attributes)


def parse_authentication_source(text: str, *, field: str) -> AuthenticationSource:
    """The source; raises InvalidArgument for another value."""
    try:
        return AuthenticationSource(text)
    except ValueError:
        raise InvalidArgument(
            "is not an authentication source", field=field, value=text, remedy="use driver or pod"
        ) from None


def _parse_addresses(text: str) -> tuple[ZoneAddress, ...]:
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_map(text) from error
    if not isinstance(entries, dict):
        raise _no_map(text)
    with refused_as_argument():
        addresses = [
            ZoneAddress(
                zone=parse_zone_name(zone, field=_TARGETS), address=parse_address(address, field=_TARGETS)
            )
            for zone, address in entries.items()
        ]
    return tuple(sorted(addresses, key=lambda entry: entry.zone))


def _no_map(text: str) -> InvalidArgument:
    remedy = 'use {"ZONE":"ADDRESS"}'
    return InvalidArgument("is not a JSON object", field=_TARGETS, value=text, remedy=remedy)


def render_attributes(attributes: VolumeAttributes) -> dict[str, str]:
    """The attributes as text, without those that have their default."""
    rendered: dict[str, str] = {}
    if attributes.encrypted is not None:
        rendered["encryptInTransit"] = str(attributes.encrypted).lower()
    if attributes.address is not None:
        rendered[_TARGET] = attributes.address
    if attributes.addresses:
        entries = {str(entry.zone): entry.address for entry in attributes.addresses}
        rendered[_TARGETS] = json.dumps(entries, sort_keys=True, separators=(",", ":"))
    if attributes.cross_account:
        rendered[_CROSS_ACCOUNT] = "true"
    if attributes.authentication_source is not None:
        rendered["authenticationSource"] = attributes.authentication_source.value
    return rendered
