"""Reservations of tunnels on demand as values: for what, by which holders, and at which port.

A spec contains everything that distinguishes one service of stunnel from another. Equal specs share a
tunnel. While a tunnel exists, its port does not change and belongs to no other tunnel. The port is derived
from the spec, so a closed tunnel that is requested again usually gets the same port.

The names of the fields are those of the file on the disk (``on_demand/store.py``), and must not change.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NewType

import msgspec

from kube_efs.aws.credential_sources import CredentialSource, IamOptions, ServiceAccountIdentity
from kube_efs.model.csi.volume_handles import AccessPointId, parse_access_point_id
from kube_efs.model.efs.ids import (
    FileSystemId,
    Region,
    ZoneName,
    parse_file_system_id,
    parse_region,
    parse_zone_name,
)
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.targets import parse_address, parse_ca_file
from kube_efs.model.errors import InvalidValue, NoTunnelPort

Holder = NewType("Holder", str)

# Targets of mounts are paths, which the kernel limits to 4096 bytes.
_LONGEST_TEXT: Final = 4096 + 256
_NAME_DIGITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelSpec:
    """Mounts with equal specs share a tunnel; raises InvalidValue for an invalid part.

    ``kind`` determines the name of the server and the service in the signature. ``iam`` is the identity of
    the node or the service account of pods; None connects without an identity. ``region`` None is the node's
    own. With ``address`` only that mount target is used, with ``zone`` (for S3 Files, the ID of a zone) those
    of the zone come first. With ``cross_account``, DNS resolves the name that begins with the ID of the
    node's zone. ``checks_revocation`` checks the server's certificate with OCSP. An authority in ``ca_file``
    must have signed it; None means those of the region.
    """

    file_system_id: FileSystemId
    access_point_id: AccessPointId | None = None
    iam: IamOptions | ServiceAccountIdentity | None = None
    region: Region | None = None
    address: str | None = None
    zone: ZoneName | None = None
    cross_account: bool = False
    checks_revocation: bool = False
    ca_file: str | None = None
    kind: FileSystemKind = FileSystemKind.EFS

    def __post_init__(self) -> None:
        parse_file_system_id(self.file_system_id)
        if self.kind.always_signs and self.iam is None:
            raise InvalidValue("is missing", field="iam", remedy="S3 Files always needs an identity")
        if self.access_point_id is not None:
            parse_access_point_id(self.access_point_id, field="access point ID")
        if self.region is not None:
            parse_region(self.region)
        if self.zone is not None:
            parse_zone_name(self.zone)
        if self.address is not None and parse_address(self.address) != self.address:
            raise InvalidValue("is not in its canonical form", field="address", value=self.address)
        if self.cross_account and (self.address is not None or self.zone is not None):
            raise InvalidValue("excludes an address and a zone", field="cross_account", value=True)
        if self.ca_file is not None:
            parse_ca_file(self.ca_file, field="cafile")
        if isinstance(self.iam, IamOptions):
            _check_iam(self.iam)

    @property
    def name(self) -> str:
        """The name of the service, the same for equal specs in every process and every version."""
        return _name(self)

    @property
    def given(self) -> Mapping[str, object]:
        """The fields that do not have their default: what a version with more or fewer fields has, too."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}


@lru_cache(maxsize=2048)
def _name(spec: TunnelSpec) -> str:
    # A new field in a later version must not change existing names.
    digest = hashlib.sha256(msgspec.json.encode(spec.given, order="deterministic")).hexdigest()
    return f"{spec.file_system_id}-{digest[:_NAME_DIGITS]}"


def parse_holder(text: str) -> Holder:
    """The name of a holder, for example a volume and its target; raises InvalidValue."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRange:
    """The ports for tunnels on demand, both ends included."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1

    def starting_at(self, key: str) -> Iterator[int]:
        """All ports of the range, beginning with one that the key determines."""
        start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8])
        return (self.first + (start + step) % len(self) for step in range(len(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A reserved tunnel; without holders, it stays until it has no connections.

    ``source`` gave the first credentials of the node's identity, and gives all later ones while it is used.
    """

    spec: TunnelSpec
    port: int
    holders: frozenset[Holder] = frozenset()
    source: CredentialSource | None = None

    @property
    def name(self) -> str:
        """The name of the service."""
        return self.spec.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservations:
    """All reservations of a node, by the names of their tunnels."""

    tunnels: Mapping[str, Reservation] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, tunnels: Iterable[Reservation]) -> "Reservations":
        """These tunnels."""
        return cls(tunnels=MappingProxyType({tunnel.name: tunnel for tunnel in tunnels}))

    @property
    def ports(self) -> frozenset[int]:
        """The reserved ports."""
        return frozenset(tunnel.port for tunnel in self.tunnels.values())

    @property
    def unheld(self) -> Mapping[int, str]:
        """The names of the tunnels without holders, by their ports."""
        return {tunnel.port: name for name, tunnel in self.tunnels.items() if not tunnel.holders}

    @property
    def holders(self) -> frozenset[Holder]:
        """All holders of tunnels."""
        return frozenset(holder for tunnel in self.tunnels.values() for holder in tunnel.holders)

    def hold(
        self, spec: TunnelSpec, holder: Holder, *, ports: PortRange, avoid: Collection[int]
    ) -> "Reservations":
        """Add a holder; a new tunnel gets a port that is not in ``avoid``.

        Raises NoTunnelPort.
        """
        name = spec.name
        tunnel = self.tunnels.get(name) or Reservation(spec=spec, port=self._free_port(name, ports, avoid))
        return self._with(replace(tunnel, holders=tunnel.holders | {holder}))

    def sign_from(self, name: str, source: CredentialSource | None) -> "Reservations":
        """Set the source of credentials of a tunnel."""
        return self._with(replace(self.tunnels[name], source=source))

    def release(self, holders: Collection[Holder]) -> "Reservations":
        """Remove these holders; their tunnels stay."""
        released = frozenset(holders)
        return Reservations(
            tunnels=MappingProxyType(
                {
                    name: replace(one, holders=one.holders - released) if one.holders & released else one
                    for name, one in self.tunnels.items()
                }
            )
        )

    def close(self, names: Collection[str]) -> "Reservations":
        """Remove these tunnels, except those with holders."""
        return Reservations.of(one for name, one in self.tunnels.items() if one.holders or name not in names)

    def _with(self, tunnel: Reservation) -> "Reservations":
        return Reservations(tunnels=MappingProxyType({**self.tunnels, tunnel.name: tunnel}))

    def _free_port(self, name: str, ports: PortRange, avoid: Collection[int]) -> int:
        taken = self.ports.union(avoid)
        for port in ports.starting_at(name):
            if port not in taken:
                return port
        raise NoTunnelPort(
            "has no free port",
            field="KUBE_EFS_TUNNEL_PORTS",
            value=f"{ports.first}-{ports.last}",
            remedy="use a wider range",
        )
