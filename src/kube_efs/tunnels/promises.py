"""Which tunnels are asked for, by whom, and at which port: values, and what they become.

A spec says what a tunnel on demand is for: what makes one service of stunnel differ from another. Equal specs
share a tunnel. While it exists its port is the same, and belongs to no other tunnel. The port is chosen from
the spec, so that a tunnel that was closed and is asked for again usually gets the port it had.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NewType

import msgspec

from kube_efs.aws.credential_sources import CredentialSource, IamOptions
from kube_efs.model.csi.volume_handles import AccessPointId, parse_access_point_id
from kube_efs.model.efs.ids import (
    FileSystemId,
    Region,
    ZoneName,
    parse_file_system_id,
    parse_region,
    parse_zone_name,
)
from kube_efs.model.efs.targets import parse_address
from kube_efs.model.errors import InvalidValue, NoTunnelPort

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
            raise InvalidValue("is not in its canonical form", field="address", value=self.address)
        if self.cross_account and (self.address is not None or self.zone is not None):
            raise InvalidValue("excludes an address and a zone", field="cross_account", value=True)
        if self.iam is not None:
            _check_iam(self.iam)

    @property
    def name(self) -> str:
        """The name of the service, the same for equal specs at any time in any process."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRange:
    """The ports for tunnels on demand, both ends included."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1

    def starting_at(self, key: str) -> Iterator[int]:
        """All ports of the range, from one on that the key determines."""
        start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8])
        return (self.first + (start + step) % len(self) for step in range(len(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A tunnel that was asked for; without holders it stays until it has no connections.

    ``source`` is where the first credentials of its identity came from, and all later ones come from.
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
class Promises:
    """All tunnels on demand of a node, by name."""

    tunnels: Mapping[str, Promise] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, tunnels: Iterable[Promise]) -> "Promises":
        """These tunnels."""
        return cls(tunnels=MappingProxyType({tunnel.name: tunnel for tunnel in tunnels}))

    @property
    def ports(self) -> frozenset[int]:
        """The ports that are given away."""
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
    ) -> "Promises":
        """With one more holder, and a tunnel for it at a port not to ``avoid`` if there was none.

        Raises NoTunnelPort.
        """
        name = spec.name
        tunnel = self.tunnels.get(name) or Promise(spec=spec, port=self._free_port(name, ports, avoid))
        return self._with(replace(tunnel, holders=tunnel.holders | {holder}))

    def sign_from(self, name: str, source: CredentialSource | None) -> "Promises":
        """With this source of credentials for a tunnel."""
        return self._with(replace(self.tunnels[name], source=source))

    def release(self, holders: Collection[Holder]) -> "Promises":
        """Without these holders; their tunnels stay."""
        gone = frozenset(holders)
        return Promises.of(replace(one, holders=one.holders - gone) for one in self.tunnels.values())

    def close(self, names: Collection[str]) -> "Promises":
        """Without these tunnels, except those that are held."""
        return Promises.of(one for name, one in self.tunnels.items() if one.holders or name not in names)

    def _with(self, tunnel: Promise) -> "Promises":
        return Promises(tunnels=MappingProxyType({**self.tunnels, tunnel.name: tunnel}))

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
